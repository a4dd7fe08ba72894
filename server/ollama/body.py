"""The bodies of ollama's generating requests, as the common flow needs them.

They may have llama-server's options too. Tested by tests/server/test_ollama_request.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Final

from pydantic import FailFast, Field, InstanceOf, PlainValidator, model_validator

from ...base.errors import RequestError
from ...base.log import get_logger
from ...model.chat.message import Tool
from ...model.guide import GrammarSpec
from ...runtime.chat import ChatRequest
from ...runtime.tools import check_tools
from ..given import Given
from ..logged import LoggedOnce
from ..schema import Int
from ..schema_chat import ConversationBody
from .keep_alive import FIELD as KEEP_ALIVE
from .keep_alive import keep_seconds
from .request import (
    Options,
    chat_messages,
    format_options,
    generation_options,
    refuse_images,
    system_messages,
    thinking_options,
)

log = get_logger("server")
_LOGGED: Final = LoggedOnce()  # names of options

# `_translate` reads them, or they have no effect here
FIELDS: Final = (
    *("messages", "options", "format", "think", "images", "system", "template"),
    *("keep_alive", "shift", "truncate", "debug"),
)


class OllamaBody(ConversationBody):
    """The common fields. A request without a text only asks for the model to be loaded.

    Attributes:
        chat: the conversation; without messages if there is nothing to generate.
    """

    stream: bool = True
    chat: InstanceOf[ChatRequest]
    tools: Annotated[tuple[Tool, ...], PlainValidator(check_tools)] = ()
    has_format: bool = False
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value

        def field(name: str) -> Given:
            return Given(name, value.get(name))

        refuse_images(field("images"))
        if field("template").text_or(""):
            raise RequestError(
                '"template" is not supported in a request: start the server with --chat-template'
            )
        for name in ("n", "n_cmpl"):
            if value.get(name) not in (None, 1):
                raise field(name).wrong("1, as a reply of ollama's has one answer")
        keep_seconds(field(KEEP_ALIVE))
        options, unknown = generation_options(field("options"))
        for name in _LOGGED.new(unknown):
            log.warning("ignoring an unknown option of ollama's requests: %s", name)
        variables, thinking = thinking_options(field("think"))
        format = format_options(field("format"))
        chat = replace(cls.conversation(value), options=variables)
        own = {"chat": chat, "has_format": bool(format), "n": 1}
        return {**value, **options, **thinking, **format, **own}

    @classmethod
    @abstractmethod
    def conversation(cls, value: Options) -> ChatRequest:
        """The conversation of a body. Raises RequestError: an invalid part; names its path."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to generate."""
        return not self.chat.messages

    def chat_request(self, response: GrammarSpec | None) -> ChatRequest:
        """See `ConversationBody.chat_request`."""
        return replace(self.chat, tools=self.tools, response=response)

    def tool_paths(self) -> Sequence[str]:
        """See `ConversationBody.tool_paths`."""
        return [f"tools[{i}].function.parameters" for i in range(len(self.tools))]

    def response_path(self) -> str:
        """See `ConversationBody.response_path`."""
        return "format" if self.has_format else self.schema_path

    @property
    def n_top_probs(self) -> int | None:
        """See `GenerationBody.n_top_probs`."""
        return self.top_logprobs if self.logprobs else None

    @classmethod
    def names(cls) -> Iterator[str]:
        """See `Body.names`."""
        yield from super().names()
        yield from FIELDS


class OllamaChatBody(OllamaBody):
    """POST /api/chat."""

    @classmethod
    def conversation(cls, value: Options) -> ChatRequest:
        """See `OllamaBody.conversation`."""
        messages = Given("messages", value.get("messages"))
        is_empty = messages.is_absent or messages.value == []
        return ChatRequest(messages=[] if is_empty else chat_messages(messages))


class OllamaGenerateBody(OllamaBody):
    """POST /api/generate.

    Attributes:
        raw: continue the prompt itself, without the chat template.
        suffix: the text after the answer.
        context: the tokens of the conversation before, as an earlier reply had them.
    """

    prompt: str = ""
    system: str = ""
    raw: bool = False
    suffix: str = ""
    context: Annotated[list[Int], FailFast()] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_raw(self) -> OllamaGenerateBody:
        if self.raw and (self.system or self.context):
            raise RequestError('"raw" excludes "system" and "context": send the whole prompt')
        if self.suffix and (self.system or self.context):
            raise RequestError('"suffix" excludes "system" and "context"')
        return self

    @classmethod
    def conversation(cls, value: Options) -> ChatRequest:
        """See `OllamaBody.conversation`."""
        prompt = Given("prompt", value.get("prompt")).text_or("")
        system = Given("system", value.get("system")).text_or("")
        is_empty = not prompt and not Given("suffix", value.get("suffix")).text_or("")
        return ChatRequest(messages=[] if is_empty else system_messages(system, prompt))
