"""The body of a request to the Messages API, as the common flow of generating requests needs it.

Tested by tests/server/test_anthropic_messages.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Final

from pydantic import Field, InstanceOf, PlainValidator, model_validator

from ...base.log import get_logger
from ...model.guide import GrammarSpec
from ...runtime.chat import ChatRequest
from ..logged import LoggedOnce
from ..schema import stop_words
from ..schema_chat import ConversationBody
from .request import translate

log = get_logger("server")
_LOGGED: Final = LoggedOnce()  # types of tools

# `translate` reads them, or they have no effect here
FIELDS: Final = (
    *("messages", "system", "tools", "tool_choice", "thinking", "output_config", "output_format"),
    *("betas", "billing_policy", "cache_control", "compaction", "container", "context_management"),
    *("diagnostics", "fallbacks", "inference_geo", "mcp_servers", "metadata", "service_tier"),
    *("speed", "thread", "user_profile_id"),
)


class MessagesBody(ConversationBody):
    """POST /v1/messages and /v1/messages/count_tokens. It may have llama-server's options too."""

    chat: InstanceOf[ChatRequest]
    shows_thinking: bool = True
    paths_of_tools: tuple[str, ...] = ()
    path_of_format: str = ""
    stop: Annotated[tuple[str, ...], PlainValidator(stop_words)] = Field(
        default=(), validation_alias="stop_sequences"
    )

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        found = translate(value)
        if new := _LOGGED.new(found.skipped):
            log.info("skipping tools that Anthropic's servers run: %s", ", ".join(new))
        chat = {"chat": found.chat, "shows_thinking": found.shows_thinking, "n": 1, "n_cmpl": 1}
        paths = {"paths_of_tools": found.tool_paths, "path_of_format": found.schema_path}
        return {**value, **found.options, **chat, **paths}

    def chat_request(self, response: GrammarSpec | None) -> ChatRequest:
        """See `ConversationBody.chat_request`."""
        return replace(self.chat, response=response)

    def tool_paths(self) -> tuple[str, ...]:
        """See `ConversationBody.tool_paths`."""
        return self.paths_of_tools

    def response_path(self) -> str:
        """See `ConversationBody.response_path`."""
        return self.path_of_format or self.schema_path

    @classmethod
    def names(cls) -> Iterator[str]:
        """See `Body.names`."""
        yield from super().names()
        yield from ("stop_sequences", *FIELDS)
