"""The watchdog: how long it waits, and what it does then."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

import pytest
from fake_context import WAIT_S

from lamella.runtime.engine.pulse import Pulse
from lamella.server import watchdog
from lamella.server.config import ServerConfig
from lamella.server.state import ServedModel, ServerState
from lamella.server.watchdog import TICK_SECONDS, Patience, exit_after, watching


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


def test_the_last_resort_counts_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped while it ended has its time again to tell its clients."""
    clock = iter([0.0, *(3600.0 + i for i in range(100))])
    statuses: list[int] = []
    ended = threading.Event()

    def exit(status: int) -> None:
        statuses.append(status)
        ended.set()

    time = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None)
    monkeypatch.setattr(watchdog, "time", time)
    monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=exit))
    exit_after(5.0, 7)
    assert ended.wait(WAIT_S)
    assert statuses == [7]
    assert next(clock) == 3600.0 + 4, "two seconds for the hour, then three"


def test_it_is_off() -> None:
    n = threading.active_count()
    with watching(0, lambda: "dead"):
        assert threading.active_count() == n


def test_it_outlives_a_model_that_is_closed_to_be_opened_again() -> None:
    """The event loop may take the model away between any two looks of the watchdog's thread."""
    served = SimpleNamespace(worker=SimpleNamespace(pulse=Pulse()))
    looks = iter([served])

    class Closing(ServerState):
        @property
        def model(self) -> ServedModel | None:
            return cast(ServedModel | None, next(looks, None))

        @model.setter
        def model(self, model: ServedModel | None) -> None: ...

    assert Closing(ServerConfig()).engine_trouble == ""
