"""Constrained texts over HTTP: fields, replies, streams, errors and limits, with a real model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from http_world import RunningServer, eventually
from structured_world import PERSON, serving_stories, valid

from lamella.server.request_record import RequestRecord

PROMPT = "Once upon a time"
HOT: dict[str, Any] = {"temperature": 1.5, "seed": 1, "max_tokens": 400}
ROUTES = ["/completion", "/v1/completions", "/v1/chat/completions"]
GBNF = 'root ::= "The " ("cat" | "dog") [a-z ]{3,9} "."'
LOOSE = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
WHOLE = {"complete": True, "loosened": []}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving_stories() as server:
        yield server


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    is_chat = path.endswith("chat/completions")
    message = {"messages": [{"role": "user", "content": PROMPT}]}
    return {**HOT, **(message if is_chat else {"prompt": PROMPT}), **fields}


def choice_of(reply: Any) -> tuple[str, Any]:
    """The text of a whole reply, and the object with `constraint`."""
    choice = reply["choices"][0] if "choices" in reply else reply
    text = choice["message"]["content"] if "message" in choice else None
    return text or choice.get("text") or choice.get("content", ""), choice


def ask(server: RunningServer, path: str = "/completion", **fields: Any) -> tuple[str, Any]:
    return choice_of(server.ok(path, **body_of(path, **fields)))


def chunks_of(server: RunningServer, path: str, **fields: Any) -> list[Any]:
    """The choices of a stream's chunks."""
    reply = server.post(path, body_of(path, stream=True, **fields))
    assert reply.status == 200, reply.raw
    events = [event for event in reply.events if event != "[DONE]"]
    return [event["choices"][0] if "choices" in event else event for event in events]


def text_of(chunk: Any) -> str:
    return chunk.get("delta", chunk).get("content") or chunk.get("text") or ""


@pytest.mark.parametrize("path", ROUTES)
def test_a_schema_on_every_route(server: RunningServer, path: str) -> None:
    text, choice = ask(server, path, json_schema=PERSON)
    valid(PERSON, text)
    assert choice["constraint"] == WHOLE
    chunks = chunks_of(server, path, json_schema=PERSON)
    assert "".join(map(text_of, chunks)) == text
    assert [chunk["constraint"] for chunk in chunks if "constraint" in chunk] == [WHOLE]
    assert chunks[-1]["constraint"] == WHOLE


@pytest.mark.parametrize("path", ROUTES)
def test_free_texts_have_no_constraint(server: RunningServer, path: str) -> None:
    assert "constraint" not in ask(server, path, max_tokens=2)[1]
    assert all("constraint" not in chunk for chunk in chunks_of(server, path, max_tokens=2))


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"grammar": GBNF}, r"The (cat|dog)[a-z ]{3,9}\."),
        ({"grammar": '%llguidance {}\nstart: /[a-f]{4}/ "!"'}, "[a-f]{4}!"),
        ({"regex": "(yes|no), [A-Z]{2}[0-9]{1,3}z"}, "(yes|no), [A-Z]{2}[0-9]{1,3}z"),
        ({"guided_choice": ["a cat", 'a "dog"\n']}, '(a cat|a "dog"\n)'),
        ({"structured_outputs": {"regex": "[xyz]{3}"}}, "[xyz]{3}"),
        ({"guided_grammar": 'root ::= [0-9]{3}'}, "[0-9]{3}"),
        ({"response_format": {"type": "regex", "pattern": "ab+c"}}, "ab+c"),
    ],
    ids=str,
)  # fmt: skip
def test_grammars_and_expressions(
    server: RunningServer, fields: dict[str, Any], pattern: str
) -> None:
    for seed in range(4):
        text, choice = ask(server, "/v1/completions", **fields, seed=seed)
        assert re.fullmatch(pattern, text), text
        assert (choice["finish_reason"], choice["constraint"]) == ("stop", WHOLE)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"grammar": 'root ::= "a'}, "line 1"),
        ({"grammar": "root ::= other"}, "other"),
        ({"regex": "a{3,1}"}, "regex"),
        ({"json_schema": LOOSE}, r"uniqueItems.*\$\.properties\.tags"),
        ({"json_schema": {"type": "strnig"}}, "type"),
        ({"grammar": GBNF, "json_schema": PERSON}, "^grammar and json_schema exclude"),
    ],
    ids=str,
)
def test_an_invalid_constraint_is_400_before_the_first_token(
    server: RunningServer, path: str, stream: bool, fields: dict[str, Any], message: str
) -> None:
    n_before = server.model.engine.counters.n_steps
    reply = server.post(path, body_of(path, stream=stream, **fields))
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert re.search(message, reply.error["message"]), reply.error["message"]
    engine = server.model.engine
    assert (engine.n_running, engine.n_waiting, engine.counters.n_steps) == (0, 0, n_before)


def test_a_limit_leaves_a_text_incomplete(server: RunningServer) -> None:
    for path in ROUTES:
        _, choice = ask(server, path, json_schema=PERSON, max_tokens=3)
        ended = choice.get("finish_reason") or choice["stop_type"]
        assert ended == ("limit" if path == "/completion" else "length")
        assert choice["constraint"] == {"complete": False, "loosened": []}


def test_a_stop_word_cuts_a_text(server: RunningServer) -> None:
    text, choice = ask(server, json_schema=PERSON, stop=['"age"'])
    assert text
    assert '"age"' not in text
    assert (choice["stop_type"], choice["stopping_word"]) == ("word", '"age"')
    assert choice["constraint"]["complete"] is False


def test_several_choices(server: RunningServer) -> None:
    reply = server.ok("/v1/completions", **body_of("", regex="[a-z ]{12}", n=3, seed=5))
    texts = [choice["text"] for choice in reply["choices"]]
    assert len(set(texts)) > 1
    assert all(choice["constraint"] == WHOLE for choice in reply["choices"])
    assert texts == [ask(server, regex="[a-z ]{12}", seed=5 + i)[0] for i in range(3)]


def test_texts_are_the_same_alone_and_together(server: RunningServer) -> None:
    requests: list[dict[str, Any]] = [
        {"json_schema": PERSON, "seed": 1},
        {"json_schema": PERSON, "seed": 2},
        {"grammar": GBNF, "seed": 3},
        {"max_tokens": 60, "seed": 4},
    ]
    alone = [ask(server, **fields)[0] for fields in requests]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            found = pool.map(lambda fields: ask(server, **fields)[0], 2 * requests)
            assert list(found) == 2 * alone


def test_probabilities_are_the_model_s_before_the_grammar(server: RunningServer) -> None:
    free = ask(server, n_probs=3, max_tokens=1)[1]["completion_probabilities"][0]
    found = ask(server, n_probs=3, regex="[0-9]{3}")[1]["completion_probabilities"]
    assert found[0]["top_logprobs"] == free["top_logprobs"]
    assert all(re.fullmatch("[0-9]+", at["token"]) for at in found)
    post = ask(server, n_probs=30, regex="[0-9]{3}", post_sampling_probs=True)[1]
    for at in post["completion_probabilities"]:
        assert all(re.fullmatch("[0-9]+", each["token"]) for each in at["top_probs"])
        assert math.isclose(sum(each["prob"] for each in at["top_probs"]), 1, rel_tol=1e-3)


def test_logprobs_of_a_chat(server: RunningServer) -> None:
    path = "/v1/chat/completions"
    text, choice = ask(server, path, regex="[a-z]{5}", logprobs=True, top_logprobs=2)
    tokens = [at["token"] for at in choice["logprobs"]["content"]]
    assert "".join(tokens) == text
    chunks = chunks_of(server, path, regex="[a-z]{5}", logprobs=True, top_logprobs=2)
    found = [at for chunk in chunks for at in (chunk.get("logprobs") or {}).get("content", ())]
    assert found == choice["logprobs"]["content"]


def test_ignore_eos_ends_with_the_grammar(server: RunningServer) -> None:
    for schema in (PERSON, {"type": "boolean"}):
        text, choice = ask(server, json_schema=schema, ignore_eos=True)
        valid(schema, text)
        assert (choice["stop_type"], choice["constraint"]) == ("eos", WHOLE)


def test_a_client_that_disconnects_ends_its_text(server: RunningServer) -> None:
    connection = server.connect()
    endless = b'{"prompt": "a", "stream": true, "regex": "[a-z ]*", "ignore_eos": true}'
    connection.request("POST", "/completion", endless)
    assert connection.getresponse().readline().startswith(b"data: ")
    connection.close()
    eventually(lambda: server.model.engine.n_running == 0)


def test_a_loosened_keyword_is_named(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    nested = {"name": "n", "schema": LOOSE, "strict": False}
    loose = {"response_format": {"type": "json_schema", "json_schema": nested}}
    with caplog.at_level("WARNING", "lamella.server"):
        found = [ask(server, path, **loose)[1]["constraint"] for path in ROUTES]
    assert all(constraint == found[0] for constraint in found)
    assert found[0]["complete"] in (True, False)
    (loosened,) = found[0]["loosened"]
    assert (loosened["path"], loosened["keyword"]) == ("$.properties.tags", "uniqueItems")
    assert loosened["reason"]
    texts = [text for text in caplog.messages if "not enforced" in text]
    assert texts == ["a JSON schema is not enforced in full: 'uniqueItems' at $.properties.tags"]


def test_the_settings_name_the_grammar(server: RunningServer) -> None:
    settings = ask(server, json_schema=PERSON)[1]["generation_settings"]
    assert (settings["grammar"], settings["json_schema"]) == ("", PERSON)
    assert ask(server, grammar=GBNF)[1]["generation_settings"]["grammar"] == GBNF
    assert ask(server, regex="a")[1]["generation_settings"]["regex"] == "a"


def test_response_fields_select_the_constraint(server: RunningServer) -> None:
    fields = ["content", "constraint/complete"]
    reply = server.ok("/completion", prompt="a", regex="b", response_fields=fields)
    assert reply == {"content": "b", "constraint/complete": True}


def test_the_log_marks_constrained_requests(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    def ends() -> dict[str, bool | None]:
        """How requests ended, in the log's text and in its JSON."""
        records = [one.msg for one in caplog.records if isinstance(one.msg, RequestRecord)]
        return {str(each).split("  ")[-2]: each.as_dict().get("complete") for each in records}

    expected = {"stop, complete": True, "length, incomplete": False, "length": None}
    with caplog.at_level("INFO", "lamella.server"):
        ask(server, regex="b")
        ask(server, regex="b{9}", max_tokens=2)
        ask(server, max_tokens=2)
        eventually(lambda: expected.items() <= ends().items())


def test_a_request_replaces_the_server_s_constraint() -> None:
    with serving_stories(json_schema=PERSON) as server:
        default = server.get("/props").json["default_generation_settings"]["params"]
        assert default["json_schema"] == PERSON
        for path in ROUTES:
            valid(PERSON, ask(server, path)[0])
            assert ask(server, path, regex="[ab]{3}")[0] in {
                a + b + c for a in "ab" for b in "ab" for c in "ab"
            }
            valid(PERSON, ask(server, path, response_format={"type": "text"})[0])
