"""One turn of a chat: from messages and tools to a prompt, a grammar and a parser of the answer.

Every API translates its requests to a `ChatRequest`, and the deltas of `PreparedChat.parser` to its
own replies. Knows no connection. Tests: tests/runtime/test_prepared_chat.py.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ..base.errors import RequestError
from ..base.nesting import limited_nesting
from ..model.chat.formats import ChatFormat, find_format
from ..model.chat.generic import with_described_tools
from ..model.chat.message import (
    ChatMessage,
    ContentDelta,
    Delta,
    ReasoningFormat,
    Tool,
    ToolMode,
)
from ..model.chat.parser import ChatParser
from ..model.chat.template import ChatTemplate
from ..model.chat.turn import Conversation, Turn
from ..model.guide import GrammarKind, GrammarSpec
from ..model.guide.chat.spec import chat_spec
from ..model.vocab import Vocab
from .engine.thinking import Thinking
from .messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A conversation, and what its next answer may be. All APIs share this form.

    Attributes:
        messages: checked ones in OpenAI's shape, as templates read them; an assistant's may have
            `reasoning_content` and `tool_calls`.
        tools: the tools that the model may call.
        tool_choice: if it may or must call one.
        tool_name: the only tool that it may call; "" for any. Only with `REQUIRED`.
        parallel_tool_calls: it may call several in one answer.
        options: more variables of the template, such as `enable_thinking` and `reasoning_effort`.
        reasoning_format: what becomes of reasoning.
        add_generation_prompt: end the prompt with the start of the answer.
        continue_final_message: leave the final message open; None: if the assistant wrote it.
        response: the grammar of the content; None if it is free.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    tool_choice: ToolMode = ToolMode.AUTO
    tool_name: str = ""
    parallel_tool_calls: bool = True
    options: Mapping[str, object] = field(default_factory=dict)
    reasoning_format: ReasoningFormat = ReasoningFormat.AUTO
    add_generation_prompt: bool = True
    continue_final_message: bool | None = None
    response: GrammarSpec | None = None


class Parser(Protocol):
    """Reads the text of an answer, piece by piece."""

    @property
    def message(self) -> ChatMessage:
        """The answer so far: the sum of all deltas."""

    def push(self, text: str, /) -> list[Delta]:
        """Return the deltas of the next piece."""

    def finish(self) -> list[Delta]:
        """Return the last deltas. The text has ended, or was cut off."""


class PlainParser:
    """A `Parser` that takes all text as content."""

    def __init__(self) -> None:
        self.message = ChatMessage()

    def push(self, text: str, /) -> list[Delta]:
        deltas: list[Delta] = [ContentDelta(text)] if text else []
        self.message.add(deltas)
        return deltas

    def finish(self) -> list[Delta]:
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChat:
    """What the engine and an API need to answer a request.

    Attributes:
        request: the request.
        format: the form of the answer.
        prompt: the text to evaluate, without a leading BOS that the vocabulary adds.
        start: the end of the prompt that belongs to the answer, such as `<think>`.
        grammar: constrains the whole answer; None if it is free.
        thinking: where the answer has reasoning; None if the format has none.
        shown: the special tokens whose texts the parser reads.
        is_parsed: the answer has reasoning and tool calls; otherwise all its text is content.
    """

    request: ChatRequest
    format: ChatFormat
    prompt: str
    start: str
    grammar: GrammarSpec | None
    thinking: Thinking | None
    shown: frozenset[int]
    is_parsed: bool = True

    def parser(self) -> Parser:
        """A new parser of an answer; each choice needs its own."""
        if not self.is_parsed:
            return PlainParser()
        request, response = self.request, self.request.response
        return ChatParser(
            self.format,
            request.tools,
            start=self.start,
            reasoning_format=request.reasoning_format,
            calls=bool(request.tools) and request.tool_choice is not ToolMode.NONE,
            response=response is not None and response.kind is GrammarKind.JSON_SCHEMA,
            new_id=new_call_id,
        )


@limited_nesting("a call, a tool or another value of the chat")
def prepare_chat(chat: ChatTemplate, vocab: Vocab, request: ChatRequest) -> PreparedChat:
    """Render a request, and find the form of its answer.

    Raises:
        RequestError: the template refuses the messages, there is no message to continue, or a value
            is nested too deeply.
    """
    format, conversation = find_format(chat.source), _conversation(chat, request)
    generic = with_described_tools(conversation, format)
    prompt, start = _turn(generic or conversation, request)
    grammar = chat_spec(
        format,
        request.tools,
        mode=request.tool_choice,
        name=request.tool_name,
        parallel=request.parallel_tool_calls,
        start=start,
        thinking=conversation.variable("enable_thinking") is not False,
        response=request.response,
    )
    return PreparedChat(
        request=request,
        format=format,
        prompt=vocab.without_bos(prompt),
        start=start,
        grammar=grammar,
        thinking=thinking_of(format, start),
        shown=shown_tokens(format, vocab),
    )


class AppliedTemplate(NamedTuple):
    """The prompt of a template, and the prompt of chats if the template ignores their tools."""

    prompt: str
    generic_prompt: str | None


@limited_nesting("a call, a tool or another value of the chat")
def apply_template(chat: ChatTemplate, vocab: Vocab, request: ChatRequest) -> AppliedTemplate:
    """Render a request with the template alone, and as chats do if that is not the same.

    Raises:
        RequestError: the template refuses the messages, or there is no message to continue.
    """
    conversation = _conversation(chat, request)
    generic = with_described_tools(conversation, find_format(chat.source))
    described = None if generic is None else vocab.without_bos(_turn(generic, request).prompt)
    try:
        prompt = vocab.without_bos(_turn(conversation, request).prompt)
    except RequestError:
        if described is None:
            raise
        return AppliedTemplate(described, None)
    return AppliedTemplate(prompt, described)


def _conversation(chat: ChatTemplate, request: ChatRequest) -> Conversation:
    variables = dict(request.options)
    if variables.get("reasoning_effort") == "none":  # OpenAI's, unknown to templates
        del variables["reasoning_effort"]
        variables.setdefault("enable_thinking", False)
    if request.tools:
        variables["tools"] = [tool.for_template() for tool in request.tools]
    schema = request.response
    if schema and schema.kind is GrammarKind.JSON_SCHEMA and chat.capabilities.takes_schema:
        variables.setdefault("response_format", json.loads(schema.source))
    return Conversation(chat, request.messages, variables)


def _turn(conversation: Conversation, request: ChatRequest) -> Turn:
    return conversation.turn(request.add_generation_prompt, request.continue_final_message)


def thinking_of(format: ChatFormat, start: str) -> Thinking | None:
    """Where an answer has reasoning that has begun with `start`; None if the format has none."""
    if not format.reasoning:
        return None
    begun, opened = max((start.rfind(marks.begin.strip()), marks) for marks in format.reasoning)
    is_open = begun > max(start.rfind(marks.end.strip()) for marks in format.reasoning)
    return Thinking(marks=format.reasoning, opened=opened if is_open else None)


def shown_tokens(format: ChatFormat, vocab: Vocab) -> frozenset[int]:
    """The special tokens whose texts are marks of a format, or parts of marks."""
    marks = format.marks()
    return frozenset(
        id for text, id in vocab.special_ids.items() if any(text in mark for mark in marks)
    )


def new_call_id() -> str:
    """A random id of a tool call."""
    return f"call_{secrets.token_hex(12)}"
