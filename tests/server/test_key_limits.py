"""Limits of API keys, with a clock that tests set, and what the server tells of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_context import WAIT_S, Clock, FakeContext
from http_world import Reply, RunningServer, make_model, running

from lamella.base.errors import ClientLimitError
from lamella.model.guide.sandbox import Sandbox
from lamella.model.guide.spec import GrammarSpec, Lark
from lamella.model.guide.translate import to_lark
from lamella.server.config import ServerConfig
from lamella.server.key_limits import KeyLimits
from lamella.server.keys import Key, read_keys

KEYS = """
[[keys]]
name = "agents"
key = "sk-agents"
salt = true

[[keys]]
name = "slow"
key = "sk-slow"
requests_per_minute = 2

[[keys]]
name = "narrow"
key = "sk-narrow"
max_running = 1

[[keys]]
key = "sk-other"
"""


def refused(limits: KeyLimits, key: Key) -> float:
    """The seconds until the key may try again; 0 if it is not refused."""
    try:
        with limits.request(key):
            return 0.0
    except ClientLimitError as error:
        return error.retry_seconds


def test_requests_per_minute() -> None:
    clock = Clock()
    limits, key = KeyLimits(clock.perf_counter), Key(name="a", key="k", requests_per_minute=3)
    other = Key(name="b", key="l", requests_per_minute=3)
    assert [refused(limits, key) for _ in range(5)] == [0, 0, 0, 20, 20]
    assert refused(limits, other) == 0
    clock.wait(15)
    assert refused(limits, key) == pytest.approx(5)
    clock.wait(5.001)
    assert [refused(limits, key) for _ in range(2)] == [0, pytest.approx(20, abs=0.01)]
    clock.wait(10_000)  # never more than the limit
    assert [refused(limits, key) > 0 for _ in range(4)] == [False, False, False, True]
    use = limits.uses["a"]
    assert (use.n_requests, use.n_refused, use.n_running) == (7, 5, 0)


def test_requests_at_a_time() -> None:
    limits, key = KeyLimits(), Key(name="a", key="k", max_running=2)
    with limits.request(key), limits.request(key):
        with pytest.raises(ClientLimitError, match="2 requests of this API key are running"):
            limits.request(key).__enter__()
        assert limits.uses["a"].n_running == 2
    with pytest.raises(KeyError), limits.request(key):
        raise KeyError
    assert limits.uses["a"].n_running == 0


def test_a_refused_request_takes_nothing() -> None:
    clock = Clock()
    limits = KeyLimits(clock.perf_counter)
    key = Key(name="a", key="k", max_running=1, requests_per_minute=2)
    with limits.request(key):
        for _ in range(9):
            assert refused(limits, key) == 0.0 and limits.uses["a"].n_requests == 1
    assert [refused(limits, key) > 0 for _ in range(2)] == [False, True]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ServerConfig:
    path: Path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(KEYS)
    return ServerConfig(port=0, metrics=True, api_file_keys=read_keys(str(path)))


@pytest.fixture
def server(config: ServerConfig) -> Iterator[RunningServer]:
    with running(config=config) as server:
        yield server


def complete(server: RunningServer, key: str, prompt: str = "a b c d e f g h") -> Reply:
    body = {"prompt": prompt, "n_predict": 1, "ignore_eos": True}
    return server.call("POST", "/completion", body, {"X-Api-Key": f"sk-{key}"})


def test_a_request_beyond_the_limit_gets_429(server: RunningServer) -> None:
    assert [complete(server, "slow").status for _ in range(2)] == [200, 200]
    reply = complete(server, "slow")
    assert (reply.status, reply.error["type"]) == (429, "rate_limit_error")
    assert reply.error["message"] == "this API key may send 2 requests per minute"
    assert 1 <= int(reply.headers["retry-after"]) <= 30
    assert complete(server, "other").status == 200
    for path in ("/props", "/v1/models"):  # only work counts
        assert server.get(path, **{"X-Api-Key": "sk-slow"}).status == 200


def test_requests_of_a_key_at_a_time(config: ServerConfig) -> None:
    context, in_step, go_on = FakeContext(), threading.Event(), threading.Event()

    def wait(step: int) -> None:
        in_step.set()
        assert go_on.wait(WAIT_S)

    context.on_decode = wait
    with running(lambda: make_model(context), config) as server, ThreadPoolExecutor() as pool:
        first = pool.submit(complete, server, "narrow")
        assert in_step.wait(WAIT_S)
        assert complete(server, "narrow").status == 429
        go_on.set()
        assert first.result().status == 200
        assert complete(server, "narrow").status == 200


def test_a_salt_hides_what_others_asked(server: RunningServer) -> None:
    def n_cached(key: str) -> int:
        found: int = complete(server, key).json["timings"]["cache_n"]
        return found

    assert n_cached("other") == 0
    assert n_cached("narrow") > 0  # keys without a salt share
    assert n_cached("agents") == 0
    assert n_cached("agents") > 0
    assert n_cached("other") > 0


def test_a_salt_hides_the_grammars_of_others(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def translate(_: Sandbox, spec: GrammarSpec, seconds: float = 1.0) -> Lark:
        compiled.append(spec.source)
        return to_lark(spec)

    monkeypatch.setattr(Sandbox, "translate", translate)
    body = {"prompt": "abc", "n_predict": 1, "regex": "[a-c]+"}
    counts = []
    for key in ("other", "narrow", "agents", "agents", "other"):
        reply = server.call("POST", "/completion", body, {"X-Api-Key": f"sk-{key}"})
        assert reply.status == 200, reply.raw
        counts.append(len(compiled))
    assert counts == [1, 1, 2, 2, 2]


def test_names_of_keys_are_in_the_log_and_in_metrics(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lamella.server")
    assert complete(server, "agents").status == 200
    assert complete(server, "other").status == 200
    for _ in range(3):
        complete(server, "slow")
    text = server.get("/metrics", **{"X-Api-Key": "sk-other"}).raw.decode()
    assert 'lamella_key_requests_total{key="agents"} 1.0' in text
    assert 'lamella_key_predicted_tokens_total{key="agents"} 1.0' in text
    assert 'lamella_key_prompt_tokens_total{key="key 4"} 16.0' in text
    assert 'lamella_key_refused_total{key="slow"} 1.0' in text
    assert 'lamella_key_running{key="slow"} 0.0' in text
    deadline = time.monotonic() + WAIT_S
    lines = ""  # each is logged after its reply
    while not all(f"  {name}  " in lines for name in ("agents", "key 4", "slow")):
        assert time.monotonic() < deadline, lines
        time.sleep(0.01)
        lines = "\n".join(caplog.messages)
    assert "sk-" not in text + lines
