"""The pace of clients' requests."""

from __future__ import annotations

import pytest
from http_world import running

from lamella.server import app, pace
from lamella.server.config import ServerConfig
from lamella.server.pace import N_AT_ONCE, N_PER_SECOND, RequestPace


def test_a_few_at_once_then_one_after_the_other() -> None:
    found = RequestPace()
    delays = [found.delay("a", 100.0) for _ in range(N_AT_ONCE + 3)]
    assert delays[:N_AT_ONCE] == pytest.approx([0.0] * N_AT_ONCE, abs=1e-9)
    assert delays[N_AT_ONCE:] == pytest.approx([i / N_PER_SECOND for i in (1, 2, 3)])
    assert found.delay("b", 100.0) == 0, "each client has its own pace"
    assert found.delay("a", 102.0) == 0, "later all are paid for"


def test_idle_clients_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "N_CLIENTS_MAX", 10)
    found = RequestPace()
    for i in range(100):
        found.delay(f"client {i}", float(i))
    assert len(found) <= 10


@pytest.mark.parametrize("is_busy", [False, True])
def test_only_beside_running_texts(monkeypatch: pytest.MonkeyPatch, is_busy: bool) -> None:
    asked: list[str] = []
    monkeypatch.setattr(RequestPace, "delay", lambda pace, client, now: asked.append(client))
    monkeypatch.setattr(app, "generates", lambda model: is_busy)
    with running(config=ServerConfig(port=0)) as server:
        assert server.get("/health").status == 200
    assert asked == (["127.0.0.1"] if is_busy else [])
