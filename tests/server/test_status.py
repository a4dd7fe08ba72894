"""GET /status.json: what it says of requests, steps, memory and prefixes, and when it answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from embed_world import make_embedder
from fake_context import WAIT_S, FakeContext
from http_world import RunningServer, make_model, running

from lamella.server.config import ServerConfig

PATH = "/status.json"


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


def status(server: RunningServer, path: str = PATH) -> Any:
    reply = server.get(path)
    assert reply.status == 200, reply.raw
    return reply.json


def test_a_new_server(server: RunningServer) -> None:
    found = status(server)
    assert found["state"] == "ok"
    assert found["model"]["name"] == "fake"
    assert found["requests"] == {"running": 0, "waiting": 0, "places": 4, "jobs": []}
    assert found["steps"] == []
    assert found["totals"]["steps"] == found["totals"]["output_tokens"] == 0
    (pool,) = found["kv"]
    assert pool["pages"] == pool["free"] > 0
    (device,) = found["devices"]
    assert (device["name"], device["layers"]) == ("CPU", 3)


def test_steps_and_totals(server: RunningServer) -> None:
    prompt = "a prompt of some tokens"
    for _ in range(2):
        server.ok("/completion", prompt=prompt, n_predict=5, ignore_eos=True)
    found = status(server)
    totals, steps = found["totals"], found["steps"]
    assert totals["output_tokens"] == 10
    assert totals["requests"] == totals["prompts"] == 2
    assert totals["prefix_hits"] == 1
    assert totals["prompt_tokens"] + totals["cached_tokens"] == 2 * len(
        server.model.vocab.tokenize(prompt)
    )
    assert [step[0] for step in steps] == list(range(totals["steps"]))
    assert sum(step[4] for step in steps) == totals["prompt_tokens"]
    assert sum(step[3] for step in steps) == 8  # the first token of each text comes of its prompt
    for _, begin, seconds, _, _, n_running, _ in steps:
        assert 0 < begin + seconds <= found["now"]
        assert n_running == 1


def test_only_later_steps(server: RunningServer) -> None:
    server.ok("/completion", prompt="abc", n_predict=4, ignore_eos=True)
    all_steps = status(server)["steps"]
    n = all_steps[2][0]
    assert status(server, f"{PATH}?since={n}")["steps"] == all_steps[2:]
    assert status(server, f"{PATH}?since=999999999")["steps"] == []


@pytest.mark.parametrize("since", ["-1", "x", "1.5", "9" * 40, "²", ""])
def test_an_invalid_step(server: RunningServer, since: str) -> None:
    error = server.get(f"{PATH}?since={_quoted(since)}").error
    assert error["code"] == 400
    assert error["message"].startswith("since is ")


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def test_a_running_request_and_a_hung_step() -> None:
    """The engine does not answer, and the status does."""
    begun, go_on = threading.Event(), threading.Event()

    def on_decode(n: int) -> None:
        if n == 3:
            begun.set()
            assert go_on.wait(WAIT_S)

    context = FakeContext()
    context.on_decode = on_decode
    with running(lambda: make_model(context)) as server:
        body = {"prompt": "abcdef", "n_predict": 8, "ignore_eos": True}
        thread = threading.Thread(target=server.ok, args=("/completion",), kwargs=body)
        thread.start()
        try:
            assert begun.wait(WAIT_S)
            found = status(server)
        finally:
            go_on.set()
            thread.join()
        (job,) = found["requests"]["jobs"]
        n_prompt = len(server.model.vocab.tokenize("abcdef"))
        assert (job["n_prompt"], job["n_done"], job["n_predicted"]) == (n_prompt, n_prompt, 2)
        assert found["requests"]["running"] == 1
        assert found["step_seconds"] > 0
        assert found["totals"]["steps"] == 2
        (pool,) = found["kv"]
        assert pool["free"] < pool["pages"]


def test_a_key_is_needed() -> None:
    with running(config=ServerConfig(port=0, api_keys=("sk-1",))) as server:
        for path in (PATH, "/explain.json"):
            assert server.get(path).error["code"] == 401
        assert server.get(PATH, Authorization="Bearer sk-1").status == 200


def test_a_server_of_embeddings() -> None:
    with running(make_embedder) as server:
        server.ok("/v1/embeddings", input=["ab", "cde"])
        found = status(server)
        assert found["model"]["kind"] == "embedding"
        assert found["kv"] == []
        assert sum(step[4] for step in found["steps"]) == found["totals"]["prompt_tokens"] > 0
        assert server.get("/explain.json").error["code"] == 501
