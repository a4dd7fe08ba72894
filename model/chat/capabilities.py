"""What a chat template can do with a conversation, found by renders of small ones.

A template that refuses or ignores a role, a key or a type of a value is found by a mark that its
text should have. Each question is asked at most once, when a conversation needs the answer.
rewrite.py changes conversations by the answers. Tests: tests/model/test_chat_capabilities.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from ...base.errors import RequestError
from .budget import BudgetError

Message = Mapping[str, Any]
Render = Callable[[Mapping[str, object]], str]

SECONDS_MAX: Final = 0.2  # processor time of one render
REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")

_MARK: Final = "xylophon"
_DUMPS: Final = ("'text': '", '"text": "', '"text":"')  # before a text in a dump of parts
_USER: Final = {"role": "user", "content": "u"}
_REPLY: Final = {"role": "assistant", "content": "a"}
_EFFORTS: Final = ("none", "low", "high", "max", _MARK)


class Capabilities:
    """The answers for one template."""

    def __init__(self, render: Render, sorts_parts: bool, needs_trimmed: bool = False) -> None:
        """
        Args:
            render: renders the template with variables. Raises RequestError.
            sorts_parts: the template sorts the parts of a content by type.
            needs_trimmed: the template's model needs texts without space at the ends.
        """
        self._render = render
        self._sorts_parts = sorts_parts
        self.needs_trimmed = needs_trimmed
        self._is_endless = False
        self._roles_with_parts = dict[object, bool]()

    @cached_property
    def no_tools(self) -> list[object] | None:
        """The value of `tools` if there are none: None, or [] for a template that refuses None."""
        refuses_none = self._rendered([_USER], {"tools": None}) is None
        return [] if refuses_none and self._rendered([_USER], {"tools": []}) is not None else None

    @cached_property
    def takes_text(self) -> bool:
        """Content may be a string."""
        message = {**_USER, "content": _MARK}
        return _MARK in (self._rendered([message], {"tools": self.no_tools}) or "")

    @cached_property
    def takes_parts(self) -> bool:
        """Content may be a list of parts, and their texts follow each other.

        Not so for a template that sorts the parts, images first: it prints no separator.
        """
        parts = [{"type": "text", "text": _MARK}]
        # a template without support for parts fails, or prints the list as Python or JSON does
        text = self._rendered([{**_USER, "content": parts}], {"tools": self.no_tools}) or ""
        before, found, _ = text.partition(_MARK)
        return bool(found) and not before.endswith(_DUMPS) and not self._sorts_parts

    def takes_parts_of(self, role: object) -> bool:
        """The content of this role may be a list of parts.

        Templates that print the parts of users may print only the first part of a system message,
        or the results of calls as Python lists.
        """
        if role not in self._roles_with_parts:
            self._roles_with_parts[role] = self.takes_parts and self._shows_parts_of(role)
        return self._roles_with_parts[role]

    def _shows_parts_of(self, role: object) -> bool:
        marks = f"{_MARK}1", f"{_MARK}2"
        parts = [{"type": "text", "text": mark} for mark in marks]
        user, message, result = _called(self._arguments)
        match role:
            case "system":
                texts = [self._text({"role": role, "content": parts}, _USER)]
            case "assistant":
                texts = [  # beside calls, texts may be left out
                    self._text(_USER, {**_REPLY, "content": parts}, _USER),
                    self._called_text([user, {**message, "content": parts}, result]),
                ]
            case "tool":
                texts = [self._called_text([user, message, {**result, "content": parts}])]
            case _:
                return True
        shown = "".join(text or "" for text in texts)
        is_dump = any(dump + _MARK in shown for dump in _DUMPS)
        return all(mark in shown for mark in marks) and None not in texts and not is_dump

    @cached_property
    def takes_system(self) -> bool:
        """The first message may be a system message."""
        return self._shows({"role": "system", "content": _MARK}, _USER)

    @cached_property
    def takes_late_system(self) -> bool:
        """Later messages may be system messages: the prompt has them."""
        system = {"role": "system", "content": _MARK}
        turns = [{**system, "content": "s"}, _USER, _REPLY]
        shows = _MARK in (self._text(*turns, system, _USER) or "")
        return shows or self._text(*turns, _USER) is None

    @cached_property
    def takes_tools(self) -> bool:
        """The prompt describes `tools`."""
        return self._shows(_USER, tools=[_tool(_MARK)])

    @cached_property
    def takes_functions(self) -> bool:
        """The prompt has the variable `functions`, a JSON text of the tools."""
        return self._shows(_USER, functions=_MARK)

    @cached_property
    def takes_calls(self) -> bool:
        """The prompt has the tool calls of earlier turns."""
        return self._shows_called(_called(self._arguments, name=_MARK))

    @cached_property
    def takes_several_calls(self) -> bool:
        """The prompt has all calls of a message."""
        user, message, result = _called(self._arguments)
        (second,) = _called(self._arguments, name=_MARK)[1]["tool_calls"]
        several = {**message, "tool_calls": [*message["tool_calls"], second]}
        return self._shows_called([user, several, result, result])

    @cached_property
    def takes_results(self) -> bool:
        """The prompt has the results of calls."""
        return self._shows_called(_called(self._arguments, result=_MARK))

    @cached_property
    def takes_nameless_results(self) -> bool:
        """The results of calls need not have the name of the tool."""
        user, message, named = _called(self._arguments)
        nameless = {key: value for key, value in named.items() if key != "name"}
        refuses = self._called_text([user, message, nameless]) is None
        return not refuses or self._called_text([user, message, named]) is None

    @cached_property
    def takes_repeated_users(self) -> bool:
        """The user may write several messages before the model answers."""
        return self._text(_USER, _USER) is not None or self._text(_USER) is None

    @cached_property
    def takes_user_after_results(self) -> bool:
        """The user may write after results, before the model answers."""
        called = _called(self._arguments)
        refuses = self._called_text([*called, _USER]) is None
        return not refuses or self._called_text(called) is None

    @cached_property
    def takes_object_arguments(self) -> bool:
        """The arguments of calls may be objects. A template that takes both gets objects."""
        text = self._called_text(_called({"k": _MARK})) or ""
        # a template that needs JSON texts may print an object as Python does
        return _MARK in text and f"{{'k': '{_MARK}'}}" not in text

    @cached_property
    def takes_text_arguments(self) -> bool:
        """The arguments of calls may be JSON texts."""
        text = self._called_text(_called(f'{{"k": "{_MARK}"}}')) or ""
        return _MARK in text and f'\\"{_MARK}' not in text

    @cached_property
    def takes_long_ids(self) -> bool:
        """The ids of calls need not have 9 letters and digits, as Mistral's templates demand."""
        long = _called(self._arguments, id="call_0123456789")
        return self._called_text(long) is not None or self._called_text(_called({})) is None

    @cached_property
    def reasoning_key(self) -> str | None:
        """The key for the reasoning of earlier turns; None if the template prints none.

        As in llama.cpp, a template that reads only `reasoning` gets it from clients that send it.
        """
        for key in ("reasoning_content", "thinking"):
            reply = {**_REPLY, key: _MARK}
            if self._shows_called(_called(self._arguments, **{key: _MARK})):
                return key
            if self._shows(_USER, reply) or self._shows(_USER, reply, _USER):
                return key
        return None

    @cached_property
    def takes_reasoning_with_content(self) -> bool:
        """A message with calls may have both reasoning and content."""
        content = _called(self._arguments, content="a")
        both = _called(self._arguments, content="a", **{self.reasoning_key or "": "r"})
        return self._called_text(both) is not None or self._called_text(content) is None

    @cached_property
    def takes_thinking_parts(self) -> bool:
        """Reasoning of earlier turns may be a part of the content, of type "thinking"."""
        parts = [{"type": "thinking", "thinking": _MARK}, {"type": "text", "text": "a"}]
        text = self._text(_USER, {**_REPLY, "content": parts}, _USER) or ""
        before, found, _ = text.partition(_MARK)
        return bool(found) and not before.endswith(("'thinking': '", '"thinking": "'))

    @cached_property
    def keeps_reasoning(self) -> bool:
        """The prompt can have the reasoning of all earlier turns, not of the last one only."""
        key = self.reasoning_key
        turns = _USER, {**_REPLY, key or "": _MARK}, _USER
        return key is not None and self._shows(*turns, preserve_reasoning=True)

    @cached_property
    def takes_effort(self) -> bool:
        """The prompt depends on the variable `reasoning_effort`."""
        texts = (self._text(_USER, reasoning_effort=effort) for effort in _EFFORTS)
        return any(text != self._text(_USER) for text in texts)

    @cached_property
    def takes_schema(self) -> bool:
        """The prompt has the variable `response_format`, a JSON schema."""
        text = self._text(_USER, response_format={_MARK: 1}) or ""
        return f'{{"{_MARK}": 1}}' in text

    @cached_property
    def takes_results_of_caller(self) -> bool:
        """Results are `tool_responses` of the message with the calls, and not messages."""
        user, message, _ = _called(self._arguments)
        inner = {**message, "tool_responses": [{"name": "f", "response": _MARK}]}
        before, found, _ = (self._called_text([user, inner]) or "").partition(_MARK)
        # newer templates take both
        outer = self._called_text(_called(self._arguments, result=_MARK)) or ""
        return bool(found) and not outer.startswith(before)

    def names(self) -> dict[str, bool]:
        """All answers by llama-server's names, for /props."""
        return {
            "supports_string_content": self.takes_text,
            "supports_typed_content": self.takes_parts,
            "supports_tools": self.takes_tools,
            "supports_tool_calls": self.takes_calls,
            "supports_parallel_tool_calls": self.takes_several_calls,
            "supports_system_role": self.takes_system,
            "supports_preserve_reasoning": self.keeps_reasoning,
            "supports_reasoning_effort": self.takes_effort,
            "supports_object_arguments": self.takes_object_arguments,
        }

    @property
    def _arguments(self) -> object:
        return {"k": "v"} if self.takes_object_arguments else '{"k": "v"}'

    def _shows_called(self, messages: Sequence[Message]) -> bool:
        return _MARK in (self._called_text(messages) or "")

    def _called_text(self, messages: Sequence[Message]) -> str | None:
        return self._text(*messages, tools=[_tool("f")])

    def _shows(self, *messages: Message, **variables: object) -> bool:
        return _MARK in (self._text(*messages, **variables) or "")

    def _text(self, *messages: Message, **variables: object) -> str | None:
        """The prompt; None if the template refuses the messages."""
        formed = list(messages) if self.takes_text else [self._with_parts(m) for m in messages]
        return self._rendered(formed, {"tools": self.no_tools, **variables})

    def _with_parts(self, message: Message) -> Message:
        content = message["content"]
        if isinstance(content, list) or not self.takes_parts:
            return message
        return {**message, "content": [{"type": "text", "text": content}]}

    def _rendered(self, messages: list[Message], variables: Mapping[str, object]) -> str | None:
        if self._is_endless:
            return None
        try:
            return self._render({**variables, "messages": messages})
        except BudgetError:
            self._is_endless = True  # all renders together take no longer than one
        except RequestError:
            pass
        return None


def _tool(name: str) -> Message:
    parameters = {"type": "object", "properties": {"k": {"type": "string", "description": "d"}}}
    function = {"name": name, "description": "d", "parameters": parameters}
    return {"type": "function", "function": function}


def _called(
    arguments: object, name: str = "f", id: str = "call00001", result: str = "r", **more: object
) -> list[Message]:
    """A question, a call and its result. `more` is of the message with the call."""
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [call], **more}
    return [_USER, message, {"role": "tool", "tool_call_id": id, "name": name, "content": result}]
