"""Grammars that begin late, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from http_world import RunningServer
from structured_world import serving_stories

PROMPT = "Once upon a time"
GRAMMAR = 'root ::= "boy called " ("Anna" | "Zoe") "!"'
BOY = {"type": 1, "value": "boy"}
LAZY = {"grammar": GRAMMAR, "grammar_lazy": True}
HI = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving_stories() as server:
        yield server


def complete(server: RunningServer, *triggers: dict[str, Any], **body: Any) -> Any:
    asked = {"prompt": PROMPT, "n_predict": 24, "temperature": 0, "grammar_triggers": triggers}
    return server.ok("/completion", **LAZY | asked | body)


@pytest.mark.parametrize(
    "trigger",
    [
        BOY,
        {"type": 2, "value": r"little\s(boy|girl)"},
        {"type": 3, "value": r"[\s\S]*?(bo)[\s\S]*"},
    ],
)
def test_a_grammar_begins_with_its_trigger(server: RunningServer, trigger: dict[str, Any]) -> None:
    free = complete(server, grammar="", grammar_lazy=False)["content"]
    reply = complete(server, trigger)
    head = free[: free.index("boy")]
    assert reply["content"] in [head + f"boy called {name}!" for name in ("Anna", "Zoe")]
    assert (reply["stop_type"], reply["constraint"]["complete"]) == ("eos", True)
    settings = reply["generation_settings"]
    assert settings["grammar_lazy"] and settings["grammar_triggers"] == [trigger]
    streamed = server.post(
        "/completion",
        {"prompt": PROMPT, "temperature": 0, "stream": True, "grammar_triggers": [trigger]} | LAZY,
    ).events
    assert "".join(each["content"] for each in streamed) == reply["content"]


def test_a_token_that_begins_a_grammar(server: RunningServer) -> None:
    comma = server.ok("/completion", prompt=PROMPT, n_predict=1, temperature=0, return_tokens=True)
    (token,) = comma["tokens"]
    found = complete(
        server, {"type": 0, "value": ",", "token": token}, grammar='root ::= ", he " "slept."'
    )
    assert found["content"] == ", he slept."


def test_without_a_trigger_the_text_is_free(server: RunningServer) -> None:
    free = complete(server, grammar="", grammar_lazy=False)
    reply = complete(server, {"type": 1, "value": "dragon"})
    assert reply["content"] == free["content"] and "constraint" not in reply


def test_a_text_that_the_grammar_refuses(server: RunningServer) -> None:
    body = {"prompt": PROMPT, "temperature": 0, "grammar_triggers": [BOY]} | LAZY
    reply = server.post("/completion", {**body, "grammar": 'root ::= "girl"'})
    assert reply.status == 400
    assert "does not allow the text of its trigger: 'boy'" in reply.error["message"]


def test_the_same_text_in_a_batch(server: RunningServer) -> None:
    alone = [complete(server, BOY, temperature=1, seed=seed)["content"] for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        texts = list(
            pool.map(lambda s: complete(server, BOY, temperature=1, seed=s)["content"], range(6))
        )
    assert texts == alone


def test_chats(server: RunningServer) -> None:
    asked = {"messages": HI, "temperature": 0, "max_tokens": 60}
    free = server.ok("/v1/chat/completions", **asked)["choices"][0]["message"]["content"]
    word = free.split()[3]
    lazy = LAZY | {"grammar": f'root ::= "{word}" " END"'}
    reply = server.ok(
        "/v1/chat/completions", **asked, **lazy, grammar_triggers=[{"type": 1, "value": word}]
    )
    assert reply["choices"][0]["message"]["content"] == free[: free.index(word)] + word + " END"
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    refused = server.post(
        "/v1/chat/completions", asked | LAZY | {"tools": [tool], "grammar_triggers": [BOY]}
    )
    assert '"grammar_lazy" cannot be combined with "tools"' in refused.error["message"]


def test_preserved_tokens_are_shown(server: RunningServer) -> None:
    asked = {"prompt": PROMPT, "n_predict": 2, "logit_bias": [[1, 100]]}
    assert server.ok("/completion", **asked)["content"] == ""
    shown = server.ok("/completion", **asked, preserved_tokens=["<s>", "two tokens"])
    assert shown["content"] == "<s><s>"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"grammar_triggers": [BOY], "grammar": ""}, '"grammar_lazy" needs a grammar'),
        ({}, '"grammar_lazy" needs "grammar_triggers"'),
        ({"grammar_triggers": []}, '"grammar_lazy" needs "grammar_triggers"'),
        ({"grammar_triggers": "x"}, '"grammar_triggers" must be a list'),
        ({"grammar_triggers": [BOY] * 65}, '"grammar_triggers" must have at most 64'),
        ({"grammar_triggers": [{"value": "x"}]}, '"grammar_triggers[0].type" is missing'),
        ({"grammar_triggers": [{"type": 4, "value": "x"}]}, "must be one of 0 (token), 1 (word)"),
        ({"grammar_triggers": [{"type": 1}]}, '"grammar_triggers[0].value" is missing'),
        ({"grammar_triggers": [{"type": 1, "value": "x" * 1025}]}, "at most 1024 characters"),
        ({"grammar_triggers": [BOY, {"type": 2, "value": "("}]}, "grammar_triggers[1].value: unb"),
        ({"grammar_triggers": [{"type": 0, "token": 10**9}]}, "token 1000000000: must be 0 to"),
        ({"grammar_triggers": [{"type": 0}]}, '"grammar_triggers[0].token" is missing'),
        ({"grammar_lazy": 1}, '"grammar_lazy" must be a valid boolean'),
        ({"preserved_tokens": [1]}, '"preserved_tokens[0]" must be a string'),
    ],
)
def test_invalid_fields(server: RunningServer, body: dict[str, Any], message: str) -> None:
    reply = server.post("/completion", {"prompt": PROMPT} | LAZY | body)
    assert reply.status == 400
    assert message in reply.error["message"]
