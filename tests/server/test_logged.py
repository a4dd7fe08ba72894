"""Texts of clients that the log names once: see also tests/base/test_log_output.py."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from http_world import RunningServer, running

from lamella.base.log_output import LogParams, log_in_background, set_up_log
from lamella.server.anthropic import body
from lamella.server.logged import N_TEXTS_MAX, LoggedOnce

FORGED = "evil\nlamella: forged \x1b[31m"
HI = [{"role": "user", "content": "a"}]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


def test_texts_are_new_once() -> None:
    logged = LoggedOnce()
    assert logged.new(["b", "a", "b"]) == ["'a'", "'b'"]
    assert logged.new(["a"]) == []
    assert logged.new([FORGED]) == [repr(FORGED)]


def test_long_and_many_texts() -> None:
    logged = LoggedOnce()
    assert logged.new(["x" * 400_000, "x" * 500_000]) == [repr("x" * 80)]
    assert len(logged.new(map(str, range(1000)))) == N_TEXTS_MAX - 1
    assert logged.new(["another"]) == []


def test_no_client_forges_a_line(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In every text of a request that the log names. The log is set up as by `lamella serve`."""
    root = logging.getLogger("lamella")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "propagate", False)  # a failure must not print long texts
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(body, "_LOGGED", LoggedOnce())
    set_up_log(LogParams(log_verbosity=4), logging.INFO)
    long = "z" * 200_000
    tools = [[{"type": kind, "name": "q"}] for kind in (FORGED, long + "1", long + "2")]
    call = {"id": FORGED, "function": {"name": FORGED, "arguments": FORGED}}
    with log_in_background():
        for given in tools:
            server.ok("/v1/messages", messages=HI, max_tokens=1, tools=given)
            server.ok("/v1/responses", input=FORGED, max_output_tokens=1, tools=given)
        server.post("/completion", {"prompt": "a", FORGED: 1, "stop": FORGED, "n_predict": 1})
        server.post("/completion", {"prompt": {FORGED: FORGED}})
        server.post(
            "/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [call]}]}
        )
        server.post("/v1/chat/completions", {"messages": HI, "tool_choice": FORGED})
        server.post("/v1/responses", {"input": [{"type": FORGED}]})
        server.post("/completion", {"prompt": "a", "json_schema": {FORGED: 1, "pattern": FORGED}})
        server.call("GET", "/%0alamella:%20forged%1b", None, {"X-Request-Id": "a\x85b"})
        server.get("/v1/models/" + "y" * 4000)
    shown = capsys.readouterr().err
    lines = shown.split("\n")
    assert "evil\\nlamella: forged" in shown
    assert not [line[:80] for line in lines if line.startswith("lamella: forged")]
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 5000 and len(shown) < 100_000
