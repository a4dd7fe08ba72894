"""Long replies are written in pieces, and probabilities take little memory until then."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import RunningServer, make_model, running

from lamella.runtime.instance import Instance
from lamella.server import prob_texts
from lamella.server.bridge import Choice
from lamella.server.config import ServerConfig
from lamella.server.json_pieces import N_PIECE
from lamella.server.pace import RequestPace
from lamella.server.prob_texts import ProbTexts
from lamella.server.turns import Turns

FIELDS: dict[str, Any] = {"prompt": "abc", "temperature": 0, "ignore_eos": True}
N_LONG = 600  # tokens; their probabilities are several pieces


def load() -> Instance:
    return make_model(FakeContext(20_000))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(load) as server:
        yield server


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_long_reply_has_what_its_stream_has(server: RunningServer, path: str) -> None:
    body = {**FIELDS, "n_predict": N_LONG, "n_probs": 20}
    reply = server.post(path, body)
    assert len(reply.raw) > 4 * N_PIECE
    assert "content-length" not in reply.headers
    events = [e for e in server.post(path, {**body, "stream": True}).events if e != "[DONE]"]
    if path == "/completion":
        found = [at for e in events for at in e.get("completion_probabilities", ())]
        assert reply.json["completion_probabilities"] == found
    else:
        each = [e["choices"][0]["logprobs"] for e in events]
        whole = reply.json["choices"][0]["logprobs"]["content"]
        assert whole == [at for probs in each if probs for at in probs["content"]]


def test_short_replies_have_a_length(server: RunningServer) -> None:
    reply = server.post("/completion", {**FIELDS, "n_predict": 3, "n_probs": 5})
    assert int(reply.headers["content-length"]) == len(reply.raw)


def test_probabilities_are_formatted_outside_of_the_event_loop(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    format = ProbTexts.text
    in_loop: list[bool] = []

    def spied(self: ProbTexts, at: Any) -> bytes:
        try:
            asyncio.get_running_loop()
            in_loop.append(True)
        except RuntimeError:
            in_loop.append(False)
        return format(self, at)

    monkeypatch.setattr(prob_texts.ProbTexts, "text", spied)
    server.ok("/completion", **FIELDS, n_predict=5, n_probs=5)
    assert in_loop == [False] * 5


@pytest.mark.parametrize("has_others", [False, True])
def test_beside_texts_of_others_a_long_reply_is_made_slowly(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, has_others: bool
) -> None:
    rests: list[float] = []
    end = Turns.end

    def spied(self: Turns, client: str, n_rest_seconds: float = 0.0) -> None:
        rests.append(n_rest_seconds)
        end(self, client, n_rest_seconds)

    monkeypatch.setattr(RequestPace, "has_others", lambda self, client: has_others)
    monkeypatch.setattr(Turns, "end", spied)
    reply = server.post("/completion", {**FIELDS, "n_predict": N_LONG, "n_probs": 20})
    assert len(reply.raw) > 4 * N_PIECE
    assert sum(map(bool, rests)) >= 4 if has_others else not any(rests)


def test_a_stream_keeps_no_probabilities(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, kept = Choice.add, []

    def spied(self: Choice, event: Any, t: float) -> Any:
        kept.append(len(self.probs))
        return add(self, event, t)

    monkeypatch.setattr(Choice, "add", spied)
    server.post("/completion", {**FIELDS, "n_predict": 30, "n_probs": 5, "stream": True})
    assert set(kept) == {0}


def test_settings_are_echoed_once(server: RunningServer) -> None:
    biases = [[12, 1.5], [13, False]]
    first, *others = server.ok(
        "/completion",
        prompt=["abc", "def"],
        n=2,
        n_predict=2,
        temperature=1,
        seed=5,
        logit_bias=biases,
    )
    settings = first["generation_settings"]
    assert settings["logit_bias"] == [{"token": 12, "bias": 1.5}, {"token": 13, "bias": False}]
    assert (settings["seed"], settings["n_predict"]) == (5, 2)
    assert [other["generation_settings"] for other in others] == [{"seed": i} for i in (6, 5, 6)]


@pytest.mark.skipif(sys.platform == "win32", reason="it has no unix sockets")
def test_an_unread_reply_is_cut_in_time() -> None:
    with tempfile.TemporaryDirectory() as folder:  # a short path
        path = f"{folder}/a.sock"  # the buffers of unix sockets are small
        config = ServerConfig(port=0, host=f"{path},127.0.0.1", write_timeout=1)
        with running(load, config) as server:
            raw = json.dumps({**FIELDS, "n_predict": 1500, "n_probs": 20}).encode()
            with closing(socket.socket(socket.AF_UNIX)) as client:
                client.settimeout(WAIT_S)
                client.connect(path)
                head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
                client.sendall(head.encode() + raw)
                ends = select.poll()
                ends.register(client, 0)  # reports only that the other side has closed
                assert ends.poll(1000 * WAIT_S), "the server waits for the client"
            assert server.get("/health").status == 200
