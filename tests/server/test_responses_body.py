"""Bodies of the Responses API become chats; long conversations are shortened."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from lamella.base.errors import ContextSizeError, RequestError
from lamella.model.chat.message import ToolMode
from lamella.runtime.chat import ChatRequest
from lamella.runtime.messages import Message
from lamella.server.parsing import parse_body
from lamella.server.responses.body import ResponsesBody, dumped, translate
from lamella.server.responses.truncation import N_TRIES_MAX, prepared_shortened, without_oldest

LOOK = {"type": "function", "name": "look"}


def body(**fields: Any) -> ResponsesBody:
    return parse_body(ResponsesBody, json.dumps({"input": "hi"} | fields).encode()).with_options()


def chat(**fields: Any) -> ChatRequest:
    request = body(**fields)
    return translate(request, [request.items(lambda _: None)]).chat


def test_a_chat() -> None:
    found = chat(instructions="Be brief.", tools=[LOOK], tool_choice="required")
    assert found.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert [tool.name for tool in found.tools] == ["look"]
    assert found.tool_choice is ToolMode.REQUIRED
    assert found.parallel_tool_calls
    assert not chat(parallel_tool_calls=False).parallel_tool_calls
    assert found.continue_final_message is False, "an answer is new, also after an answer"


@pytest.mark.parametrize(
    ("effort", "options"),
    [
        (None, {}),
        ("none", {"reasoning_effort": "none", "enable_thinking": False}),
        ("minimal", {"reasoning_effort": "low"}),
        ("high", {"reasoning_effort": "high"}),
        ("xhigh", {"reasoning_effort": "high"}),
    ],
)
def test_effort(effort: str | None, options: dict[str, Any]) -> None:
    assert chat(reasoning={"effort": effort}).options == options
    given = chat(reasoning={"effort": effort}, chat_template_kwargs={"reasoning_effort": "x"})
    assert given.options == options | {"reasoning_effort": "x"}


def test_options_of_a_generation() -> None:
    schema = {"type": "object"}
    text = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": False}}
    params = body(text=text, max_output_tokens=7, top_p=0.5).params
    assert params == {"json_schema": schema, "schema_strict": False, "n_predict": 7, "top_p": 0.5}


def test_earlier_turns_come_first() -> None:
    earlier = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = translate(body(), [earlier, body().items(lambda _: None)]).chat
    assert [message["content"] for message in found.messages] == ["a", "b", "hi"]


def test_an_input_without_messages() -> None:
    assert body(input=None, previous_response_id="x").items(lambda _: None) == []
    for empty in ([], [{"type": "web_search_call"}]):
        with pytest.raises(RequestError, match='"input" has no message'):
            chat(input=empty)


def test_items_as_a_text() -> None:
    items: list[dict[str, Any]] = [{"a": 1}, {"b": "é"}]
    assert json.loads(dumped(items)) == items
    assert dumped([]) == "[]"


SYSTEM: Message = {"role": "system", "content": "s"}
TALK: list[Message] = [
    SYSTEM,
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "", "tool_calls": [{}]},
    {"role": "tool", "content": "b"},
    {"role": "tool", "content": "c"},
    {"role": "user", "content": "d"},
]


@pytest.mark.parametrize(("n", "left"), [(0, 5), (1, 4), (2, 1), (3, 1), (4, 1), (9, 1)])
def test_the_oldest_messages_leave(n: int, left: int) -> None:
    assert without_oldest(TALK, n) == [SYSTEM, *TALK[-left:]]


@pytest.mark.parametrize(("n_max", "n_left"), [(9, 6), (6, 6), (5, 5), (4, 2), (2, 2), (0, 2)])
def test_a_conversation_loses_no_more_than_it_has_to(n_max: int, n_left: int) -> None:
    chat = ChatRequest(messages=TALK)
    found = prepared_shortened(chat, n_max, lambda short: (short, len(short.messages)))
    assert len(found.messages) == n_left


def test_a_conversation_that_fits_is_tried_once_and_keeps_its_order() -> None:
    tried: list[ChatRequest] = []

    def prepare(short: ChatRequest) -> tuple[ChatRequest, int]:
        tried.append(short)
        return short, 6

    chat = ChatRequest(messages=[*TALK[1:], SYSTEM, TALK[0]])
    assert prepared_shortened(chat, 1000, prepare) is chat
    assert tried == [chat]


@pytest.mark.parametrize("n_chars_per_token", [0.5, 4, 40])
@pytest.mark.parametrize("seed", range(4))
def test_few_conversations_are_tried_and_none_that_is_far_too_long(
    n_chars_per_token: float, seed: int
) -> None:
    """Also if lengths differ much, and say little about the number of tokens."""
    random = Random(seed)
    lengths = [int(10 ** random.uniform(0, 3)) for _ in range(5000)]
    messages: list[Message] = [
        {"role": ("user", "assistant")[i % 2], "content": "a" * n} for i, n in enumerate(lengths)
    ]
    tried: list[int] = []

    def n_tokens(short: ChatRequest) -> int:
        return sum(7 + int(len(str(m["content"])) / n_chars_per_token) for m in short.messages)

    def prepare(short: ChatRequest) -> tuple[ChatRequest, int]:
        tried.append(n_tokens(short))
        return short, tried[-1]

    found = prepared_shortened(ChatRequest(messages=messages), 4096, prepare)
    n_left = len(found.messages)
    assert n_tokens(found) <= 4096
    assert n_tokens(ChatRequest(messages=messages[-n_left - 1 :])) > 4096
    assert len(tried) <= N_TRIES_MAX
    assert sum(tried) <= 20 * 4096
    assert found.messages == messages[-n_left:]


def test_a_last_message_that_does_not_fit_is_prepared_alone() -> None:
    def prepare(short: ChatRequest) -> tuple[ChatRequest, int]:
        raise ContextSizeError(len(short.messages), 1)

    with pytest.raises(ContextSizeError, match="has 2 tokens"):
        prepared_shortened(ChatRequest(messages=TALK), 1, prepare)
