"""Output items of the Responses API, and their events, from the deltas of answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from lamella.model.chat.message import (
    ArgumentsDelta,
    CallDelta,
    ContentDelta,
    Delta,
    ReasoningDelta,
)
from lamella.server.given import Given
from lamella.server.responses.custom_input import CustomInput
from lamella.server.responses.items import Conversation, unsealed
from lamella.server.responses.output import Json, Output
from lamella.server.responses.tools import tools_of

TOOLS = tools_of(
    Given(
        "tools",
        [
            {"type": "function", "name": "look"},
            {"type": "custom", "name": "patch"},
            {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "f"}]},
        ],
    )
)
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ITEMS: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)


def play(
    deltas: Iterable[Delta], *, is_complete: bool = True, **options: bool
) -> tuple[list[Json], list[Json]]:
    """The items, and the events. Both are checked by OpenAI's types."""
    output = Output(TOOLS, **{"has_summary": False, "is_sealed": False} | options)
    events = [json.loads(json.dumps(event)) for delta in deltas for event in output.add(delta)]
    events += output.end(is_complete)
    for i, event in enumerate(events):
        EVENTS.validate_python(event | {"sequence_number": i})
    for item in output.items:
        ITEMS.validate_python(item)
    return output.items, events


def names(events: Sequence[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text() -> None:
    (item,), events = play([ContentDelta("He"), ContentDelta("llo")])
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    assert item == {
        "id": item["id"],
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    assert item["id"].startswith("msg_")
    assert names(events) == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert events[0]["item"]["content"] == []
    assert events[0]["item"]["status"] == "in_progress"
    assert events[-1]["item"] == item


def test_reasoning() -> None:
    (item, message), events = play([ReasoningDelta("Hm."), ContentDelta("Yes")])
    assert item["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert item["summary"] == []
    assert "encrypted_content" not in item
    assert message["content"][0]["text"] == "Yes"
    assert names(events)[:6] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]


def test_reasoning_as_a_summary() -> None:
    (item, _), events = play([ReasoningDelta("Hm.")], has_summary=True, is_sealed=True)
    assert item["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert unsealed(item["encrypted_content"]) == "Hm."
    assert names(events)[1:5] == [
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ]


def test_calls() -> None:
    deltas: list[Delta] = [
        CallDelta(0, "c1", "look"),
        ArgumentsDelta(0, '{"q"'),
        ArgumentsDelta(0, ": 1}"),
        CallDelta(1, "c2", "mcp__f"),
        ArgumentsDelta(1, "{}"),
    ]
    (first, second), events = play(deltas)
    assert (first["type"], first["call_id"], first["name"]) == ("function_call", "c1", "look")
    assert first["arguments"] == '{"q": 1}'
    assert "namespace" not in first
    assert (second["namespace"], second["name"], second["arguments"]) == ("mcp", "f", "{}")
    assert names(events)[:5] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert [event["output_index"] for event in events] == [0] * 5 + [1] * 4


def test_a_custom_call() -> None:
    arguments = json.dumps({"input": 'a\n"b"'})
    deltas: list[Delta] = [
        CallDelta(0, "c", "patch"),
        *(ArgumentsDelta(0, char) for char in arguments),
    ]
    (item,), events = play(deltas)
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", 'a\n"b"')
    pieces = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(pieces) == 'a\n"b"'
    assert len(pieces) == len('a\n"b"')


def test_an_empty_answer_has_an_empty_text() -> None:
    (item,), _ = play([])
    assert item["content"][0]["text"] == ""
    items, _ = play([ReasoningDelta("a")])
    assert [item["type"] for item in items] == ["reasoning", "message"]


def test_a_cut_answer_is_incomplete() -> None:
    assert play([], is_complete=False)[0] == []
    items, _ = play([ContentDelta("a"), CallDelta(0, "c", "look")], is_complete=False)
    assert [item["status"] for item in items] == ["completed", "incomplete"]


@pytest.mark.parametrize("tool", ["look", "patch"])
def test_a_call_whose_arguments_are_cut_is_incomplete(tool: str) -> None:
    """As by a stop string: the answer itself is complete."""
    for arguments, status in (('{"input": "x', "incomplete"), ('{"input": "x"}', "completed")):
        (item,), events = play([CallDelta(0, "c", tool), ArgumentsDelta(0, arguments)])
        assert item["status"] == events[-1]["item"]["status"] == status


@pytest.mark.parametrize("has_summary", [False, True])
def test_items_of_an_answer_become_its_message_again(has_summary: bool) -> None:
    deltas: list[Delta] = [
        ReasoningDelta("Hm."),
        ContentDelta("Wait."),
        CallDelta(0, "c1", "mcp__f"),
        ArgumentsDelta(0, '{"q": 1}'),
        CallDelta(1, "c2", "patch"),
        ArgumentsDelta(1, '{"input": "x"}'),
    ]
    items, _ = play(deltas, has_summary=has_summary)
    conversation = Conversation()
    conversation.add(Given(f"input[{i}]", item) for i, item in enumerate(items))
    (message,) = conversation.messages
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Wait.")
    calls: Any = message["tool_calls"]
    assert [(call["id"], call["function"]) for call in calls] == [
        ("c1", {"name": "mcp__f", "arguments": '{"q": 1}'}),
        ("c2", {"name": "patch", "arguments": '{"input": "x"}'}),
    ]


CUSTOM = [
    ('{"input": "abc"}', "abc"),
    (' {\n"input" :"a\\n\\"\\\\\\/\\u00e9\\ud83d\\ude00☃" } ', 'a\n"\\/é😀☃'),
    ('{"input": "a\\ud83d"}', "a\ufffd"),
    ('{"input": "a\\ud83d\\n"}', "a\ufffd\n"),
    ('{"input": "a\\x"}', "a\\x"),
    ('{"input": "cut', "cut"),
    ('{"input": "cut\\u12', "cut"),
    ('{"input": "cut\\ud83d\\ud', "cut\ufffd"),
    ('{"input": "a", "more": "b"}', "a"),
    ('{"patch": "a\\n"}', "a\n"),
    ('{"why": "w", "input": "a"}', "a"),
    ('{"a": 1}', '{"a": 1}'),
    ('"a"', '"a"'),
    ("", ""),
    ("{", "{"),
    ('{"' + "k" * 300 + '": "a"}', "a"),
]


@pytest.mark.parametrize(("arguments", "expected"), CUSTOM)
def test_the_text_of_a_custom_call(arguments: str, expected: str) -> None:
    for n in (1, 2, 3, 7, len(arguments) or 1):
        reader = CustomInput()
        pieces = [reader.push(arguments[i : i + n]) for i in range(0, len(arguments), n)]
        assert "".join(pieces) + reader.finish() == expected
