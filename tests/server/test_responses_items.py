"""Items of the Responses API become messages."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lamella.base.errors import RequestError
from lamella.runtime.messages import Message
from lamella.server.given import Given
from lamella.server.responses import items
from lamella.server.responses.items import N_ITEMS_MAX, Conversation, sealed, unsealed

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"q": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "found"}
THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": []}


def read(*items: object, instructions: str = "") -> list[Message]:
    conversation = Conversation(instructions)
    conversation.add(Given(f"input[{i}]", item) for i, item in enumerate(items))
    return conversation.messages


def says(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    parts = [{"type": kind, "text": text, "annotations": []} for text in texts]
    return {"type": "message", "role": role, "content": parts, "status": "completed", "id": "msg"}


def test_messages() -> None:
    assert read(
        {"role": "user", "content": "a"}, says("assistant", "b", "c"), says("user", "d")
    ) == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b\nc"},
        {"role": "user", "content": "d"},
    ]


def test_texts_of_one_role_are_one_message() -> None:
    texts = [says("developer", "b"), says("system", "c"), says("user", "d"), says("user", "e")]
    assert read(*texts, instructions="a") == [
        {"role": "system", "content": "a\n\nb\n\nc"},
        {"role": "user", "content": "d\n\ne"},
    ]


def test_later_instructions_are_system_messages() -> None:
    roles = [
        m["role"] for m in read(says("system", "a"), says("user", "b"), says("developer", "c"))
    ]
    assert roles == ["system", "user", "system"]


def test_an_empty_text_is_a_message() -> None:
    """LM Studio's clients load a model with an empty input."""
    assert read({"role": "user", "content": ""}) == [{"role": "user", "content": ""}]
    assert read({"role": "system", "content": ""}) == []
    assert read(says("user", "a"), says("user", ""))[0]["content"] == "a"


def test_a_refusal_is_a_text() -> None:
    part = {"type": "refusal", "refusal": "No."}
    assert read({"role": "assistant", "content": [part]})[0]["content"] == "No."


def test_an_answer_with_reasoning_and_calls_is_one_message() -> None:
    second = CALL | {"call_id": "c2", "name": "read", "namespace": "mcp__files"}
    thought = THOUGHT | {"content": [{"type": "reasoning_text", "text": "Hm."}]}
    outputs = [OUTPUT, OUTPUT | {"call_id": "c2", "output": [{"type": "input_text", "text": "x"}]}]
    answer, *results = read(thought, says("assistant", "Wait."), CALL, second, *outputs)
    assert answer["reasoning_content"] == "Hm."
    assert answer["content"] == "Wait."
    assert answer["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": 1}'}},
        {
            "id": "c2",
            "type": "function",
            "function": {"name": "mcp__files__read", "arguments": '{"q": 1}'},
        },
    ]
    assert results == [
        {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "found"},
        {"role": "tool", "tool_call_id": "c2", "name": "mcp__files__read", "content": "x"},
    ]


def test_a_custom_call() -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a"b\n☃'}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    answer, result = read(call, output)
    calls: Any = answer["tool_calls"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"input": 'a"b\n☃'}
    assert result["content"] == "done"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"content": [{"type": "reasoning_text", "text": "a"}], "encrypted_content": "x"}, "a"),
        ({"encrypted_content": sealed("é☃")}, "é☃"),
        ({"encrypted_content": sealed("a"), "summary": [{"type": "summary_text"}]}, "a"),
        ({"summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "gAAAA"}, "s"),
        ({"content": None}, None),
    ],
)
def test_reasoning(more: dict[str, Any], expected: str | None) -> None:
    found = read(THOUGHT | more, says("assistant", "b"))
    assert found[0].get("reasoning_content") == expected


def test_several_thoughts_are_one() -> None:
    thoughts = [THOUGHT | {"content": [{"type": "reasoning_text", "text": text}]} for text in "ab"]
    assert read(*thoughts)[0]["reasoning_content"] == "a\nb"


@pytest.mark.parametrize("content", ["", "lamella:", "lamella:=", "lamella:/w==", "x:YQ=="])
def test_other_sealed_contents_are_ignored(content: str) -> None:
    assert unsealed(content) == ""


def test_additional_tools() -> None:
    conversation = Conversation()
    tools = [{"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "e"}]}]
    item = {"type": "additional_tools", "role": "developer", "tools": tools}
    conversation.add([Given("input[0]", item), Given("input[1]", item)])
    assert list(conversation.tools) == ["e"]


def test_items_of_tools_of_openai_are_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "_LOGGED", set())
    with caplog.at_level("WARNING", "lamella.server"):
        assert read(
            {"type": "web_search_call"}, says("user", "a"), {"type": "web_search_call"}
        ) == [{"role": "user", "content": "a"}]
    assert caplog.text.count("web_search_call") == 1


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("a", '"input[0]" must be an object, found "a"'),
        ({}, '"input[0].type" is missing'),
        ({"type": "x"}, '"input[0].type" must be one of message, reasoning, function_call'),
        ({"type": 1}, '"input[0].type" must be a string, found 1'),
        ({"type": "message"}, '"input[0].role" is missing'),
        ({"role": "user"}, '"input[0].content" is missing'),
        ({"role": "tool", "content": "a"}, '"input[0].role" must be one of user, assistant'),
        ({"role": "user", "content": 1}, '"input[0].content" must be a string or a list of parts'),
        ({"role": "user", "content": [1]}, '"input[0].content[0]" must be an object, found 1'),
        ({"role": "user", "content": [{}]}, '"input[0].content[0].type" is missing'),
        (
            {"role": "user", "content": [{"type": "input_text"}]},
            '"input[0].content[0].text" is missing',
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]},
            '"input[0].content[0]" has the type input_image: this server reads texts only',
        ),
        (CALL | {"arguments": {}}, '"input[0].arguments" must be a string, found {}'),
        (CALL | {"call_id": None}, '"input[0].call_id" is missing'),
        (CALL | {"name": 1}, '"input[0].name" must be a string, found 1'),
        (OUTPUT, '"input[0].call_id" has no call in the conversation: c1'),
        (THOUGHT | {"summary": 1}, '"input[0].summary" must be a string or a list of parts'),
    ],
)
def test_wrong_items(item: object, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(item)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "a" * 500},
        {"role": "developer", "content": "a" * 500},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "a" * 500}]},
    ],
)
def test_many_texts_of_a_role_take_no_long_time(item: dict[str, Any]) -> None:
    """Joined one by one, 8 MB of them took half a minute."""
    conversation = Conversation()
    begin = time.thread_time()
    conversation.add(Given("input", item) for _ in range(N_ITEMS_MAX))
    (message,) = conversation.messages
    assert time.thread_time() - begin < 5
    assert max(len(str(value)) for value in message.values()) > 500 * N_ITEMS_MAX


def test_messages_are_complete_between_items() -> None:
    conversation = Conversation("a")
    for text in "bc":
        assert conversation.messages
        conversation.add([Given("input", {"role": "system", "content": text})])
    assert conversation.messages == [{"role": "system", "content": "a\n\nb\n\nc"}]
