"""The answer of a model in a chat: content, reasoning and tool calls, whole or as deltas.

Knows no format, no tokens and no HTTP. Tests: tests/model/test_chat_parser.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, Final

from ...base.errors import RequestError

NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


class ReasoningFormat(StrEnum):
    """What becomes of reasoning; the values are llama-server's `reasoning_format`."""

    AUTO = "auto"  # it is apart from the content
    DEEPSEEK = "deepseek"  # the same
    DEEPSEEK_LEGACY = "deepseek-legacy"  # it is apart, and in the content with its marks
    NONE = "none"  # it stays in the content, with its marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: its name.
        description: what it does, for the model.
        parameters: JSON schema of the object of its arguments.
        strict: refuse a keyword of `parameters` that cannot be enforced. Otherwise it loosens its
            own sub-schema.
        given: the tool in OpenAI's shape, as a client gave it. Templates get all its keys.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(NO_PARAMETERS))
    strict: bool = False
    given: Mapping[str, Any] | None = None

    def for_template(self) -> Mapping[str, Any]:
        """The tool in OpenAI's shape, with the keys that templates expect in all tools."""
        given = self.given or {"type": "function", "function": {"name": self.name}}
        function = dict(given["function"])
        if function.get("description") is None:
            function["description"] = self.description
        if function.get("parameters") is None:
            function["parameters"] = self.parameters
        function["parameters"] = {**function["parameters"]}
        function["parameters"].setdefault("properties", {})
        return {**given, "function": function}


class ToolMode(StrEnum):
    """If an answer may or must call tools; the values are OpenAI's `tool_choice`."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(slots=True)
class ToolCall:
    """A call of a tool.

    Attributes:
        id: a name for the call in this chat.
        name: the tool's name.
        arguments: the text of a JSON object, cut off if the answer was.
    """

    id: str
    name: str
    arguments: str = ""

    @property
    def is_complete(self) -> bool:
        """True if `arguments` is a whole JSON object, of finite numbers."""
        try:
            return isinstance(_strict_json(self.arguments), dict)
        except (ValueError, RecursionError):
            return False

    @property
    def parsed(self) -> dict[str, Any]:
        """The arguments as a dict.

        Raises:
            RequestError: they are not complete.
        """
        if not self.is_complete:
            raise RequestError(f"parsed: the arguments of {self.name} are not complete")
        found: dict[str, Any] = json.loads(self.arguments)
        return found


def _strict_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError also for numbers that Python reads and JSON
    cannot write: NaN, infinity and what becomes infinite."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(number: str) -> float:
    found = float(number)
    if not isfinite(found):
        raise ValueError(f"{number:.80} is no finite number")
    return found


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """The next piece of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """The begin of call number `index`, counted from 0. Its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """The next piece of the arguments of call number `index`: of a JSON text."""

    index: int
    text: str


Delta = ContentDelta | ReasoningDelta | CallDelta | ArgumentsDelta


@dataclass(slots=True)
class ChatMessage:
    """An answer so far: what its deltas add up to."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def has_calls(self) -> bool:
        """True if there are calls, and the arguments of all are complete."""
        return bool(self.calls) and all(call.is_complete for call in self.calls)

    def add(self, deltas: Sequence[Delta]) -> None:
        """Append deltas, in order."""
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    self.content += text
                case ReasoningDelta(text):
                    self.reasoning += text
                case CallDelta(_, id, name):
                    self.calls.append(ToolCall(id, name))
                case ArgumentsDelta(index, text):
                    self.calls[index].arguments += text
