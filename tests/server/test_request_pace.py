"""The pace of clients' requests."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from http_world import running

from lamella.server import pace
from lamella.server.config import ServerConfig
from lamella.server.pace import N_AT_ONCE, N_PER_SECOND, RequestPace


@pytest.fixture
def busy() -> Iterator[RequestPace]:
    """The pace beside texts of another client."""
    found = RequestPace()
    with found.generating("other"):
        yield found


def test_a_few_at_once_then_one_after_the_other(busy: RequestPace) -> None:
    delays = [busy.delay("a", 100.0) for _ in range(N_AT_ONCE + 3)]
    assert delays[:N_AT_ONCE] == pytest.approx([0.0] * N_AT_ONCE, abs=1e-9)
    assert delays[N_AT_ONCE:] == pytest.approx([i / N_PER_SECOND for i in (1, 2, 3)])
    assert busy.delay("b", 100.0) == 0, "each client has its own pace"
    assert busy.delay("a", 103.0) == 0, "later all are paid for"


def test_idle_clients_are_forgotten(busy: RequestPace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "N_CLIENTS_MAX", 10)
    for i in range(100):
        busy.delay(f"client {i}", float(i))
    assert len(busy) <= 10


def test_only_texts_of_others_slow_a_client() -> None:
    found = RequestPace()

    def is_slow() -> bool:
        return max(found.delay("a", 100.0) for _ in range(2 * N_AT_ONCE)) > 0

    assert not is_slow(), "there are no texts"
    with found.generating("a"), found.generating("a"):
        assert not is_slow(), "all texts are its own"
        with found.generating("b"):
            assert is_slow()
    assert not is_slow(), "all texts have ended"


def test_requests_of_texts_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that generates is counted by its address while it runs, and no longer."""
    seen: list[dict[str, int]] = []

    def delay(found: RequestPace, client: str, now: float) -> float:
        seen.append(dict(found._n_texts))
        return 0.0

    monkeypatch.setattr(RequestPace, "delay", delay)
    with running(config=ServerConfig(port=0)) as server:
        connection = server.connect()
        body = {"prompt": "a", "stream": True, "ignore_eos": True, "n_predict": 10_000}
        connection.request("POST", "/completion", json.dumps(body))
        reply = connection.getresponse()
        assert reply.readline().startswith(b"data: ")
        assert server.get("/health").status == 200
        reply.close()
        connection.close()
        while seen[-1:] != [{}]:
            assert server.get("/health").status == 200
    assert {"127.0.0.1": 1} in seen
