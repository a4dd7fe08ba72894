"""Tools and reasoning of POST /v1/chat/completions, with an engine that plays answers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from http_world import RunningServer
from tools_world import ADD, WEATHER, call, serving

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Go."}]}
TOOLS: dict[str, Any] = {**ASK, "tools": [WEATHER, ADD]}

KIEL = call("get_weather", '{"city": "Kiel"}')
SUM = call("add", '{"a": 1, "b": 2}')


class Script:
    """The text that the engine plays next."""

    def __init__(self) -> None:
        self.text = ""
        self.prompt = ""

    def __call__(self, prompt: str) -> str:
        self.prompt = prompt
        return self.text


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, script: Script) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("model")
    with serving(folder, script, follows_grammar=False) as server:
        yield server


def added(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    """The messages that the chunks of a stream add up to, by the index of their choice."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            message = found.setdefault(choice["index"], {})
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    _add_calls(message.setdefault("tool_calls", []), value)
                elif name == "function_call":
                    _add_function(message.setdefault("function_call", {}), value)
                elif name == "role" or message.get(name) is None:
                    message[name] = value
                else:
                    message[name] += value
            if choice["finish_reason"]:
                message["finish_reason"] = choice["finish_reason"]
    return found


def _add_calls(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    for delta in deltas:
        if "id" in delta:
            assert delta["index"] == len(calls)
            calls.append({"id": delta["id"], "type": delta["type"], "function": {}})
        _add_function(calls[delta["index"]]["function"], delta["function"])


def _add_function(function: dict[str, str], delta: dict[str, str]) -> None:
    for name, value in delta.items():
        function[name] = function.get(name, "") + value


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**each, "id": ""} for each in message.get("tool_calls", [])]
    return {**message, **({"tool_calls": calls} if calls else {})}


def answer(server: RunningServer, **body: Any) -> dict[str, Any]:
    """The message of a reply with its finish reason. A stream gives the same."""
    choice = server.ok(CHAT, **body)["choices"][0]
    message = {**choice["message"], "finish_reason": choice["finish_reason"]}
    *chunks, done = server.post(CHAT, {**body, "stream": True}).events
    assert done == "[DONE]"
    streamed = added(chunks)[0]
    assert without_ids(streamed) == without_ids({**message, "content": message["content"] or None})
    assert isinstance(message, dict)
    return message


def called(message: dict[str, Any]) -> list[tuple[str, str]]:
    assert len({each["id"] for each in message["tool_calls"]}) == len(message["tool_calls"])
    for each in message["tool_calls"]:
        assert each["id"].startswith("call_")
        assert each["type"] == "function"
    functions = [each["function"] for each in message["tool_calls"]]
    return [(function["name"], function["arguments"]) for function in functions]


def test_a_call(server: RunningServer, script: Script) -> None:
    script.text = KIEL
    message = answer(server, **TOOLS)
    assert called(message) == [("get_weather", '{"city": "Kiel"}')]
    assert (message["content"], message["finish_reason"]) == (None, "tool_calls")
    assert "get_weather" in script.prompt


def test_reasoning_content_and_calls(server: RunningServer, script: Script) -> None:
    script.text = f"<think>\nTwo things.\n</think>\n\nI look.\n{KIEL}\n{SUM}"
    message = answer(server, **TOOLS)
    assert message["reasoning_content"].strip() == "Two things."
    assert message["content"].strip() == "I look."
    names = [name for name, _ in called(message)]
    assert names == ["get_weather", "add"]
    assert message["finish_reason"] == "tool_calls"
    reply = server.ok(CHAT, **TOOLS)
    details = reply["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < reply["usage"]["completion_tokens"]


def test_plain_answers(server: RunningServer, script: Script) -> None:
    script.text = "It is sunny."
    message = answer(server, **TOOLS)
    expected = {"role": "assistant", "content": "It is sunny.", "finish_reason": "stop"}
    assert message == expected
    assert answer(server, **TOOLS, tool_choice="none") == expected
    assert answer(server, **ASK) == expected


def test_a_text_without_tools_is_content(server: RunningServer, script: Script) -> None:
    script.text = KIEL
    message = answer(server, **ASK)
    assert "get_weather" in message["content"]
    assert message["finish_reason"] == "stop"


def test_the_choice_of_a_function(server: RunningServer, script: Script) -> None:
    script.text = SUM
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        message = answer(server, **TOOLS, tool_choice=choice, parallel_tool_calls=False)
        assert called(message) == [("add", '{"a": 1, "b": 2}')]


def test_a_call_that_a_limit_cuts(server: RunningServer, script: Script) -> None:
    script.text = KIEL
    n = len(server.model.vocab.tokenize(KIEL, add_special=False))
    message = answer(server, **TOOLS, max_tokens=n - 5)
    assert message["finish_reason"] == "length"
    [(name, arguments)] = called(message)
    assert name == "get_weather"
    assert '{"city": "Kiel"}'.startswith(arguments)


def test_calls_that_are_not_in_the_format(server: RunningServer, script: Script) -> None:
    """A model may write anything: no text is lost, and only whole calls end as calls."""
    rng = random.Random(1)
    parts = ["<tool_call>", "</tool_call>", "<think>", "</think>", "\n", "{", "}", "é☃", " Hm. "]
    parts += [KIEL, KIEL[:30], KIEL[30:], SUM[:-13], '{"name": "add"', '"arguments": ', "{}", "add"]
    for _ in range(15):
        script.text = "".join(rng.choices(parts, k=rng.randrange(1, 9)))
        message = answer(server, **{**TOOLS, "tool_choice": "auto"})
        calls = message.get("tool_calls", [])
        whole = [is_object(each["function"]["arguments"]) for each in calls]
        expected = "tool_calls" if whole and all(whole) else "stop"
        assert message["finish_reason"] == expected, script.text


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def test_several_choices(server: RunningServer, script: Script) -> None:
    script.text = KIEL
    reply = server.ok(CHAT, **TOOLS, n=2)
    ids = [choice["message"]["tool_calls"][0]["id"] for choice in reply["choices"]]
    assert len(set(ids)) == 2
    *chunks, _ = server.post(CHAT, {**TOOLS, "n": 2, "stream": True}).events
    found = added(chunks)
    assert [found[i]["finish_reason"] for i in (0, 1)] == ["tool_calls"] * 2
    assert all(called(found[i]) == [("get_weather", '{"city": "Kiel"}')] for i in (0, 1))


def test_probabilities_beside_calls(server: RunningServer, script: Script) -> None:
    script.text = f"Hm. {KIEL}"
    body = {**TOOLS, "logprobs": True, "top_logprobs": 0}
    (choice,) = server.ok(CHAT, **body)["choices"]
    tokens = [each["token"] for each in choice["logprobs"]["content"]]
    assert "".join(tokens).endswith("</tool_call>")
    *chunks, _ = server.post(CHAT, {**body, "stream": True}).events
    streamed = [
        each["token"]
        for chunk in chunks
        for each in (chunk["choices"][0].get("logprobs") or {"content": []})["content"]
    ]
    assert streamed == tokens


def test_usage_of_a_stream(server: RunningServer, script: Script) -> None:
    script.text = f"<think>\nWell.\n</think>\n\n{KIEL}"
    whole = server.ok(CHAT, **TOOLS)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last, done = server.post(CHAT, {**TOOLS, **options}).events
    assert done == "[DONE]"
    assert last["choices"] == []
    for usage in (last["usage"], whole["usage"]):
        del usage["prompt_tokens_details"]
    assert last["usage"] == whole["usage"]


def test_reasoning_stays_in_the_content(server: RunningServer, script: Script) -> None:
    script.text = "<think>\nWell.\n</think>\n\nYes."
    message = answer(server, **ASK, reasoning_format="none")
    assert "Well." in message["content"]
    assert "reasoning_content" not in message
    assert answer(server, **ASK)["content"].strip() == "Yes."


@pytest.mark.parametrize(
    "off",
    [
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_thinking_can_be_off(server: RunningServer, script: Script, off: dict[str, Any]) -> None:
    script.text = "Yes."
    assert answer(server, **ASK, **off)["content"] == "Yes."
    assert script.prompt.rstrip().endswith("</think>")


def test_a_budget_of_reasoning(server: RunningServer, script: Script) -> None:
    script.text = f"<think>\n{'Well, well. ' * 50}</think>\n\nYes."
    reply = server.ok(CHAT, **ASK, reasoning_budget=9)
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] in range(9, 18)
    assert reply["choices"][0]["message"]["content"].strip() == "Yes."


def test_older_functions(server: RunningServer, script: Script) -> None:
    script.text = SUM
    functions = [each["function"] for each in TOOLS["tools"]]
    message = answer(server, **ASK, functions=functions, function_call={"name": "add"})
    assert message == {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
        "finish_reason": "function_call",
    }
    asked = {"role": "assistant", "content": None, "function_call": message["function_call"]}
    result = {"role": "function", "name": "add", "content": "3"}
    script.text = "It is 3."
    messages = [*ASK["messages"], asked, result]
    assert answer(server, messages=messages, functions=functions)["content"] == "It is 3."
    assert '"name": "add"' in script.prompt
    assert "function_call" not in script.prompt


def test_a_conversation_with_results(server: RunningServer, script: Script) -> None:
    script.text = f"{KIEL}\n{SUM}"
    message = server.ok(CHAT, **TOOLS)["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": each["id"], "content": f"result {i}"}
        for i, each in enumerate(message["tool_calls"])
    ]
    script.text = "Done."
    messages = [*ASK["messages"], message, *results]
    assert answer(server, **{**TOOLS, "messages": messages})["content"] == "Done."
    assert KIEL in script.prompt
    assert "result 1" in script.prompt


def test_counted_tokens(server: RunningServer) -> None:
    path = f"{CHAT}/input_tokens"
    counted = server.ok(path, **TOOLS)
    n = server.ok(CHAT, **TOOLS, max_tokens=1)["usage"]["prompt_tokens"]
    assert counted == {"input_tokens": n, "object": "response.input_tokens"}
    assert server.ok(path, **ASK)["input_tokens"] < n


def test_errors_name_the_place(server: RunningServer) -> None:
    bad = [WEATHER, {"type": "function", "function": {"name": "no way"}}]
    error = server.post(CHAT, {**ASK, "tools": bad}).error
    assert error["message"].startswith('"tools[1].function.name" must be 1 to 128')
    error = server.post(
        CHAT, {**TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}
    ).error
    assert "must be one of get_weather, add, found 'x'" in error["message"]
    error = server.post(CHAT, {**TOOLS, "functions": []}).error
    assert '"functions" and "tools" exclude each other' in error["message"]
    strict = json.loads(json.dumps(WEATHER))
    strict["function"] |= {"strict": True}
    strict["function"]["parameters"]["properties"]["city"]["pattern"] = "("
    error = server.post(CHAT, {**ASK, "tools": [strict]}).error
    assert "city" in error["message"]
    for field in ("tools", "functions"):
        error = server.post("/completion", {"prompt": "a", field: TOOLS["tools"]}).error
        assert "is a field of chats" in error["message"]


def test_errors_of_schemas_name_the_field(server: RunningServer) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "zz"}}}
    bad = {"name": "bad", "parameters": wrong, "strict": True}
    deep = {"name": "deep", "parameters": json.loads('{"items":' * 200 + "{}" + "}" * 200)}
    tools = [WEATHER, {"type": "function", "function": bad}]
    only = {"type": "function", "function": {"name": "bad"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [only]}}
    format = {"type": "json_schema", "json_schema": {"name": "a", "schema": wrong}}
    bad_path = "`tools[1].function.parameters.properties.a`"
    for body, path in (
        ({"tools": tools}, bad_path),
        ({"tools": tools, "tool_choice": allowed}, bad_path),
        ({"functions": [WEATHER["function"], bad]}, "`functions[1].parameters.properties.a`"),
        ({"functions": [bad, deep]}, "functions[1].parameters: 201 nested brackets"),
        ({"response_format": format}, "response_format.json_schema.schema: `type` at `$"),
        ({"response_format": {"type": "json_schema", "schema": wrong}}, "response_format.schema: "),
        ({"guided_json": wrong}, "guided_json: `type` at `$"),
        ({"json_schema": wrong}, "json_schema: `type` at `$"),
    ):
        reply = server.post(CHAT, ASK | body)
        assert reply.status == 400
        assert path in reply.json["error"]["message"]
