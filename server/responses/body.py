"""The body of a request of the Responses API, and its translation to the common form of chats.

Fields of llama-server have the same effect as in chats. Fields that only label a request or concern
OpenAI's own services have no effect. Knows no model and no connection.
Tested by tests/server/test_http_responses.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import AliasChoices, Field, JsonValue, model_validator

from ...base.errors import RequestError
from ...model.guide import GrammarSpec
from ...runtime.chat import ChatRequest
from ...runtime.messages import check_template_options
from ..constraints import FIELDS, SCHEMA_PATH
from ..given import Given
from ..schema import INT32_MAX, Body, GenerationBody
from .items import N_ITEMS_MAX, Conversation
from .tools import Tools, choice_of, tools_of

Json = dict[str, Any]
FindItem = Callable[[str], Json | None]  # a stored output item, by its id

# templates know the three efforts of gpt-oss, and a switch
EFFORTS: Final = {"minimal": "low", "xhigh": "high", "max": "high"}
LOGPROBS: Final = "message.output_text.logprobs"
SEALED: Final = "reasoning.encrypted_content"
REFUSED: Final = {
    "background": "a response is made while its request waits",
    "conversation": 'use "previous_response_id", or send all items',
    "prompt": 'send the texts in "instructions" and "input"',
}


class Reasoning(Body):
    """OpenAI's `reasoning`."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        default=None, validation_alias=AliasChoices("summary", "generate_summary")
    )


class Text(Body):
    """OpenAI's `text`. `format` is a `response_format` with its fields beside `type`."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesBody(GenerationBody):
    """POST /v1/responses and /v1/responses/input_tokens."""

    input: Any = None
    instructions: str = ""
    previous_response_id: str = ""
    store: bool = True
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = Field(default=None, ge=1)  # of tools that servers run
    max_output_tokens: int | None = Field(default=None, ge=1, le=INT32_MAX)
    reasoning: Reasoning = Reasoning()
    text: Text = Text()
    include: list[str] = Field(default_factory=list, max_length=64)
    truncation: Literal["auto", "disabled"] = "disabled"
    top_logprobs: int = Field(default=0, ge=0, le=20)
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    n_choices: int = Field(default=1, ge=1, le=1, validation_alias=AliasChoices("n_cmpl", "n"))
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)

    @classmethod
    def names(cls) -> Iterator[str]:
        """See `Body.names`."""
        yield from super().names()
        yield from REFUSED
        yield from ("client_metadata", "personality", "prompt_cache_options")  # without effect

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: object) -> object:
        given = value if isinstance(value, dict) else {}
        for name, instead in REFUSED.items():
            if given.get(name) not in (None, False):
                raise RequestError(f'"{name}" is not supported: {instead}')
        return value

    @property
    def n_top_probs(self) -> int | None:
        """Number of candidates to report per token; None: no probabilities."""
        has_probs = LOGPROBS in self.include or self.top_logprobs
        return self.top_logprobs if has_probs else super().n_top_probs

    @property
    def keeps_probs(self) -> bool:
        """See `GenerationBody`. The last event of a stream has the whole response."""
        return True

    @property
    def keeps_prob_texts(self) -> bool:
        """See `GenerationBody`."""
        return True

    def with_options(self) -> ResponsesBody:
        """The body with OpenAI's fields among its `params`. Raises RequestError."""
        params = dict(self.params)
        if self.max_output_tokens is not None:
            params["n_predict"] = self.max_output_tokens
        if self.text.format is not None:
            params |= FIELDS["response_format"]("text.format", self.text.format)
        path = params.pop(SCHEMA_PATH, self.schema_path)
        return self.model_copy(update={"params": params, "schema_path": path})

    def template_options(self) -> dict[str, object]:
        """Variables of the chat template."""
        check_template_options(self.chat_template_kwargs)
        options: dict[str, object] = {}
        effort = self.reasoning.effort
        if effort is not None:
            options["reasoning_effort"] = EFFORTS.get(effort, effort)
            if effort == "none":
                options["enable_thinking"] = False
        return options | self.chat_template_kwargs

    def items(self, find_item: FindItem) -> list[Json]:
        """The items of `input`, references replaced by the items that they name.

        Raises:
            RequestError: no item, or an unknown reference.
        """
        given = Given("input", self.input)
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        if given.is_absent and self.previous_response_id:
            return []
        if not isinstance(self.input, list):
            raise given.wrong("a string or a list of items")
        return [_resolved(item, find_item) for item in given.each(N_ITEMS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A request in the common form of chats, and the tools by the names that the model knows."""

    chat: ChatRequest
    tools: Tools


def translate(
    body: ResponsesBody, turns: Iterable[Sequence[Json]], response: GrammarSpec | None = None
) -> Translation:
    """Translate a request.

    Args:
        body: the request.
        turns: the items of the conversation: those of earlier turns, then the request's own.
        response: the grammar of the text.

    Raises:
        RequestError: an invalid item, tool or choice.
    """
    conversation = Conversation(body.instructions)
    for turn in turns:
        conversation.add(Given(f"input[{i}]", item) for i, item in enumerate(turn))
    if not conversation.messages:
        raise RequestError('"input" has no message')
    given = Given("tools", body.tools)
    tools = ({} if given.is_absent else tools_of(given)) | conversation.tools
    choice = choice_of(Given("tool_choice", body.tool_choice), tools)
    chat = ChatRequest(
        messages=conversation.messages,
        tools=choice.tools,
        tool_choice=choice.mode,
        tool_name=choice.name,
        parallel_tool_calls=body.parallel_tool_calls,
        options=body.template_options(),
        continue_final_message=False,
        response=response,
    )
    return Translation(chat=chat, tools=tools)


def dumped(items: Sequence[Json]) -> str:
    """A list of items as a JSON text. One call of the encoder, which holds the interpreter's lock,
    for each."""
    return f"[{','.join(map(json.dumps, items))}]"


def _resolved(given: Given, find_item: FindItem) -> Json:
    item = given.object()
    if item.get("type") != "item_reference":
        return item
    id = given.get("id")
    found = find_item(id.text())
    if found is None:
        raise id.refused(f"is not the id of a stored item: {id.text():.100}")
    return found
