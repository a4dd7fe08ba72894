"""The pace of clients' requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest
from fake_context import FakeContext
from http_world import make_model, running

from lamella.server import pace
from lamella.server.config import ServerConfig
from lamella.server.pace import (
    N_REQUESTS_MEAN,
    N_SECONDS_AT_ONCE,
    N_SECONDS_FIRST,
    N_SECONDS_MOST,
    SHARE,
    SHARE_BESIDE_DEVICES,
    Kind,
    RequestPace,
)
from lamella.server.state import ServerState

N_PER_SECOND = SHARE / N_SECONDS_FIRST
N_AT_ONCE = round(N_SECONDS_AT_ONCE * N_PER_SECOND)


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
    assert busy.delay("a", 100.0, Kind.POLL) == 0, "and each kind of its requests"
    assert busy.delay("a", 103.0) == 0, "later all are paid for"


@pytest.mark.parametrize(
    ("n_seconds", "n_per_second"), [(1e-4, SHARE / 1e-4), (1e-3, SHARE / 1e-3), (1e-2, 10.0)]
)
def test_what_requests_take_sets_the_pace(
    busy: RequestPace, n_seconds: float, n_per_second: float
) -> None:
    for _ in range(20 * N_REQUESTS_MEAN):
        busy.used(n_seconds)
    assert busy.n_per_second(Kind.OTHER) == pytest.approx(n_per_second)
    assert busy.n_per_second(Kind.POLL) == pytest.approx(max(n_per_second, 25.0))
    n_at_once = round(N_SECONDS_AT_ONCE * n_per_second)
    delays = [busy.delay("a", 100.0) for _ in range(n_at_once + 2)]
    assert delays[:n_at_once] == pytest.approx([0.0] * n_at_once, abs=1e-5)
    assert delays[n_at_once:] == pytest.approx([1 / n_per_second, 2 / n_per_second], rel=1e-3)


@pytest.mark.parametrize(("is_on_host", "share"), [(True, SHARE), (False, SHARE_BESIDE_DEVICES)])
def test_requests_get_more_where_devices_compute(is_on_host: bool, share: float) -> None:
    state, context = ServerState(ServerConfig(port=0)), FakeContext()
    context.is_on_host = is_on_host
    model = make_model(context)
    try:
        asyncio.run(state.load(lambda: model))
        assert state.pace.share == share
        assert state.pace.n_per_second(Kind.OTHER) == share / N_SECONDS_FIRST
    finally:
        model.engine.close()


def test_a_request_with_many_texts_says_little_about_others(busy: RequestPace) -> None:
    busy.used(60.0)
    least = SHARE / (N_SECONDS_FIRST + N_SECONDS_MOST / N_REQUESTS_MEAN)
    assert least <= busy.n_per_second(Kind.OTHER) <= N_PER_SECOND


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


def test_requests_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(RequestPace, "used", lambda _, n_seconds: seen.append(n_seconds))
    with running(config=ServerConfig(port=0)) as server:
        assert server.get("/health").status == 200
        assert server.get("/nowhere").status == 404
        while len(seen) < 2:  # counted after the reply
            time.sleep(0.01)
    assert all(0 < n_seconds < 1 for n_seconds in seen)


def test_requests_of_texts_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that generates is counted by its address while it runs, and no longer."""
    seen: list[dict[str, int]] = []

    def delay(found: RequestPace, client: str, now: float, kind: Kind) -> float:
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
