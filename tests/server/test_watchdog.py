"""The watchdog: how long it waits, and what it does then."""

from __future__ import annotations

import threading

import pytest
from fake_context import WAIT_S

from lamella.server import watchdog
from lamella.server.watchdog import TICK_SECONDS, Patience, watching


def test_it_waits_for_trouble_that_lasts() -> None:
    patience = Patience(3.0)
    assert [patience.is_over("dead", 1.0) for _ in range(3)] == [False, False, True]


def test_trouble_that_ends_begins_anew() -> None:
    patience = Patience(2.0)
    causes = ["dead", "", "dead", "dead"]
    assert [patience.is_over(cause, 1.0) for cause in causes] == [False, False, False, True]


def test_a_process_that_was_stopped_has_its_time_again() -> None:
    patience = Patience(10.0)
    assert not patience.is_over("dead", 3600.0)
    n_left = int(10 / TICK_SECONDS) - 2
    assert [patience.is_over("dead", TICK_SECONDS) for _ in range(n_left)] == [
        *[False] * (n_left - 1),
        True,
    ]


def test_it_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "TICK_SECONDS", 0.001)
    ends: list[tuple[str, float]] = []
    ended = threading.Event()

    def end(cause: str, n_seconds: float) -> None:
        ends.append((cause, n_seconds))
        ended.set()

    with watching(0.002, lambda: "dead", end):
        assert ended.wait(WAIT_S)
    assert ends == [("dead", 0.002)]


def test_it_is_off() -> None:
    n = threading.active_count()
    with watching(0, lambda: "dead"):
        assert threading.active_count() == n
