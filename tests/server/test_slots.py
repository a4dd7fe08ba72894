"""GET /slots: what each running request does."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any

from fake_context import FakeContext
from http_world import RunningServer, make_model, running

from lamella.server.slots import slot_json

SECRET = "secretword"


def test_a_fresh_slot_says_little() -> None:
    assert slot_json(2, 64, None, is_running=False, speculates=True) == {
        "id": 2,
        "n_ctx": 64,
        "speculative": True,
        "is_processing": False,
    }


def _begin(stack: ExitStack, server: RunningServer, raw: bytes) -> HTTPConnection:
    client = stack.enter_context(closing(server.connect()))
    client.request("POST", "/completion", raw)
    assert client.getresponse().read(1)
    return client


def test_an_idle_slot_shows_its_last_request() -> None:
    with running() as server:
        server.ok("/completion", prompt="abc", n_predict=3, ignore_eos=True, id_slot=2, seed=7)
        *_, idle, fresh = server.get("/slots").json
    assert "params" not in fresh
    assert (idle["id"], idle["is_processing"], idle["n_prompt_tokens"]) == (2, False, 4)
    assert (idle["params"]["seed"], idle["params"]["n_predict"]) == (7, 3)
    (token,) = idle["next_token"]
    assert not token["has_next_token"] and token["n_decoded"] == 3


def test_running_requests_are_shown_without_their_texts() -> None:
    context = FakeContext(n_ctx=100_000)
    context.on_decode = lambda _: time.sleep(0.001)
    options = (
        b'"stream": true, "ignore_eos": true, "seed": 5, "temperature": 0.5, "n_predict": 9999,'
        b'"id_slot": 1, "stop": ["secretword"], "dry_sequence_breakers": ["secretword"]'
    )
    with running(lambda: make_model(context, n_parallel=2)) as server, ExitStack() as stack:
        _begin(stack, server, b'{"prompt": "secretword", %s}' % options)
        reply = server.get("/slots")
        second, first = reply.json
        assert (first["is_processing"], second["is_processing"]) == (True, False)
        assert SECRET not in reply.raw.decode()
        assert first["params"]["seed"] == 5 and first["params"]["temperature"] == 0.5
        assert first["n_prompt_tokens"] == len(SECRET) + 1
        done = first["n_prompt_tokens_processed"] + first["n_prompt_tokens_cache"]
        assert done == first["n_prompt_tokens"]
        (token,) = first["next_token"]
        assert token["n_decoded"] > 0 and token["n_remain"] + token["n_decoded"] == 9999
        assert server.get("/slots?fail_on_no_slot=1").status == 200
        _begin(stack, server, b'{"prompt": "ab", %s}' % options)
        again: list[dict[str, Any]] = server.get("/slots").json
        assert again[1]["id_task"] == first["id_task"] != again[0]["id_task"]
        assert again[1]["next_token"][0]["n_decoded"] >= token["n_decoded"]
        assert server.get("/slots?fail_on_no_slot=1").error["type"] == "unavailable_error"
