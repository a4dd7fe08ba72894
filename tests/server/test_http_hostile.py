"""Hostile grammars over HTTP: each ends in an error, and the server goes on."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from fake_context import WAIT_S
from http_world import RunningServer, eventually
from structured_world import serving_stories

from lamella.model.guide import CompiledGrammar, GrammarSpec
from lamella.server import grammars
from lamella.server.grammars import GrammarQueue

# 60 branches that overlap: the product becomes too large
SLOW = {
    "oneOf": [
        {"properties": {f"a{i}": {"type": "string", "pattern": f"^{i}+x*"}}, "required": [f"a{i}"]}
        for i in range(60)
    ]
}
NESTED = '{"type":"array","items":' * 10_000 + "true" + "}" * 10_000

HOSTILE: dict[str, dict[str, Any]] = {
    "1 MB schema": {"json_schema": {"enum": ["x" * 20 + str(i) for i in range(33_000)]}},
    "1 MB grammar": {"grammar": 'root ::= "a"' + " | [a-z]{3}" * 80_000},
    "nested GBNF": {"grammar": "root ::= " + "(" * 10_000 + '"a"'},
    "recursive Lark": {"grammar": "%llguidance {}\nstart: start"},
    "nested Lark": {"grammar": "%llguidance {}\nstart: " + "(" * 10_000},
    "long regex": {"regex": "a?" * 100_000},
    "nested regex": {"regex": "(" * 8_000 + ")" * 8_000},
    "null": {"regex": "a\0" * 10 + "("},
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving_stories() as server:
        yield server


def body(**fields: Any) -> dict[str, Any]:
    return {"prompt": "Once", "max_tokens": 8, **fields}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused(server: RunningServer, name: str) -> None:
    reply = server.post("/completion", body(**HOSTILE[name]))
    assert reply.status in (400, 413), reply.raw[:200]
    assert len(reply.error["message"]) < 1000


def test_a_deeply_nested_schema_is_refused(server: RunningServer) -> None:
    """Python's JSON cannot even write it."""
    raw = f'{{"prompt": "Once", "json_schema": {NESTED}}}'.encode()
    reply = server.call("POST", "/completion", raw)
    assert reply.status == 400 and "nested" in reply.error["message"], reply.raw[:200]


@contextmanager
def compiling(server: RunningServer, word: str) -> Iterator[list[str]]:
    """A request whose grammar, a new word, compiles until the block ends. Yields the sources that
    compile."""
    compiler, sources, gate = server.model.engine.compiler, list[str](), threading.Event()
    compile_spec = compiler.compile

    def wait(spec: GrammarSpec, *more: Any) -> CompiledGrammar:
        sources.append(spec.source)
        assert gate.wait(WAIT_S)
        return compile_spec(spec, *more)

    with patch.object(compiler, "compile", wait), ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.ok, "/completion", **body(regex=word))
        try:
            eventually(lambda: sources == [word])
            yield sources
        finally:
            gate.set()
        assert first.result()["content"] == word


def test_too_many_grammars_at_once(server: RunningServer) -> None:
    with patch.object(grammars, "N_WAITING_MAX", 1), compiling(server, "one"):
        reply = server.post("/completion", body(regex="second"))
        assert reply.status == 503 and "waiting" in reply.error["message"]
        assert "retry-after" in reply.headers
        assert server.ok("/completion", **body())["tokens_predicted"]


def test_a_client_that_hangs_up_leaves_the_queue(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[str] = []
    compiled = GrammarQueue._compiled

    async def noted(queue: GrammarQueue, spec: GrammarSpec, client: str) -> CompiledGrammar:
        waiting.append(spec.source)
        try:
            return await compiled(queue, spec, client)
        finally:
            waiting.remove(spec.source)

    with compiling(server, "two") as sources:
        monkeypatch.setattr(GrammarQueue, "_compiled", noted)
        for i in range(4):
            raw = json.dumps(body(regex=f"gone{i}")).encode()
            length = f"Content-Length: {len(raw)}"
            head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(head.encode() + raw)
                eventually(lambda source=f"gone{i}": source in waiting)  # type: ignore[misc]
        assert server.get("/health").status == 200
        eventually(lambda: not waiting)
    assert server.ok("/completion", **body(regex="last"))["content"] == "last"
    assert set(sources) == {"two"}


def test_requests_go_on_beside_hostile_ones(server: RunningServer) -> None:
    bodies = [body(json_schema={**SLOW, "title": f"beside {i}"}) for i in range(2)]
    with ThreadPoolExecutor(2) as pool:
        hostile = pool.map(lambda each: server.post("/completion", each), bodies)
        for _ in range(5):
            assert server.get("/health").status == 200
            assert server.ok("/completion", **body())["tokens_predicted"]
        assert {reply.status for reply in hostile} == {400}
    eventually(lambda: server.model.engine.n_running == 0)
