"""From the deltas of an answer to Anthropic's blocks and events."""

from __future__ import annotations

import pytest
from pydantic_core import from_json

from lamella.model.chat.message import (
    ArgumentsDelta,
    CallDelta,
    ContentDelta,
    Delta,
    ReasoningDelta,
)
from lamella.server.anthropic.blocks import SIGNATURE, Blocks, Json, WholeBlocks

THOUGHT: list[Delta] = [ReasoningDelta("Let me"), ReasoningDelta(" see.")]
TEXT: list[Delta] = [ContentDelta("I "), ContentDelta("look.")]
CALL: list[Delta] = [
    CallDelta(0, "a1", "read"),
    ArgumentsDelta(0, '{"p": '),
    ArgumentsDelta(0, "1}"),
]
SECOND: list[Delta] = [CallDelta(1, "a2", "now"), ArgumentsDelta(1, "{}")]

THINKING_BLOCK = {"type": "thinking", "thinking": "Let me see.", "signature": SIGNATURE}
TEXT_BLOCK = {"type": "text", "text": "I look."}
CALL_BLOCK = {"type": "tool_use", "id": "a1", "name": "read", "input": {"p": 1}}
SECOND_BLOCK = {"type": "tool_use", "id": "a2", "name": "now", "input": {}}


def events(*deltas: Delta, shows_thinking: bool = True) -> list[Json]:
    blocks = Blocks(shows_thinking=shows_thinking)
    streamed = [event for delta in deltas for event in blocks.add([delta])]
    return [*streamed, *blocks.close()]


def test_blocks_come_in_order_and_are_closed() -> None:
    found = events(*THOUGHT, *TEXT, *CALL, *SECOND)
    assert [(each["type"].removeprefix("content_block_"), each["index"]) for each in found] == [
        *[("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0)],
        *[("start", 1), ("delta", 1), ("delta", 1), ("stop", 1)],
        *[("start", 2), ("delta", 2), ("delta", 2), ("stop", 2)],
        *[("start", 3), ("delta", 3), ("stop", 3)],
    ]
    assert [each["delta"] for each in found if "delta" in each] == [
        {"type": "thinking_delta", "thinking": "Let me"},
        {"type": "thinking_delta", "thinking": " see."},
        {"type": "signature_delta", "signature": SIGNATURE},
        {"type": "text_delta", "text": "I "},
        {"type": "text_delta", "text": "look."},
        {"type": "input_json_delta", "partial_json": '{"p": '},
        {"type": "input_json_delta", "partial_json": "1}"},
        {"type": "input_json_delta", "partial_json": "{}"},
    ]
    assert [each["content_block"] for each in found if "content_block" in each] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "a1", "name": "read", "input": {}},
        {"type": "tool_use", "id": "a2", "name": "now", "input": {}},
    ]


def test_an_empty_answer_has_no_events() -> None:
    assert events() == []


def whole(*deltas: Delta, shows_thinking: bool = True) -> list[Json]:
    found = WholeBlocks()
    found.add(events(*deltas, shows_thinking=shows_thinking))
    return found.blocks


def streamed(*deltas: Delta, shows_thinking: bool = True) -> list[Json]:
    """What a client makes of the events."""
    found: list[Json] = []
    for event in events(*deltas, shows_thinking=shows_thinking):
        if event["type"] == "content_block_start":
            found.append(dict(event["content_block"]))
            arguments = ""
        elif event["type"] == "content_block_delta":
            (name, text), *_ = [item for item in event["delta"].items() if item[0] != "type"]
            if name == "partial_json":
                arguments += text
                found[-1]["input"] = from_json(arguments, allow_partial=True)
            else:
                found[-1][name] += text
    return found


@pytest.mark.parametrize(
    ("deltas", "blocks"),
    [
        ([], []),
        (TEXT, [TEXT_BLOCK]),
        (CALL, [CALL_BLOCK]),
        ([*THOUGHT, *TEXT, *CALL, *SECOND], [THINKING_BLOCK, TEXT_BLOCK, CALL_BLOCK, SECOND_BLOCK]),
        ([*TEXT, *THOUGHT, *TEXT], [TEXT_BLOCK, THINKING_BLOCK, TEXT_BLOCK]),
        ([*CALL, *TEXT], [CALL_BLOCK, TEXT_BLOCK]),
    ],
)
def test_whole_blocks_equal_those_of_a_stream(deltas: list[Delta], blocks: list[Json]) -> None:
    assert whole(*deltas) == streamed(*deltas) == blocks


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", {}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ('{"path": "x", "text": "cut o', {"path": "x"}),
        ("[1]", {}),
        ("no JSON", {}),
        ('{"n": NaN}', {}),
        ('{"n": 1e999}', {}),
    ],
)
def test_arguments_that_are_cut_off(text: str, arguments: Json) -> None:
    (block,) = whole(CallDelta(0, "a", "f"), ArgumentsDelta(0, text))
    assert block["input"] == arguments


def test_thinking_may_be_omitted() -> None:
    omitted = {"type": "thinking", "thinking": "", "signature": SIGNATURE}
    deltas = [*THOUGHT, *TEXT]
    assert whole(*deltas, shows_thinking=False) == [omitted, TEXT_BLOCK]
    assert streamed(*deltas, shows_thinking=False) == [omitted, TEXT_BLOCK]
