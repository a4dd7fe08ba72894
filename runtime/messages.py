"""Checks the messages of a chat, as a caller of HTTP or of the Python API gave them.

Knows no connection and no tokens.
Tested by tests/server/test_http_schema.py and test_http_prompts.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shortened
from typing import Final

from ..base.errors import RequestError
from ..base.utf8 import check_utf8
from ..model.chat.capabilities import REASONING_KEYS
from .tools import check_calls

Message = dict[str, object]

N_MESSAGES_MAX: Final = 16384
TEXTS: Final = frozenset(("name", "tool_call_id", *REASONING_KEYS))
MAY_BE_EMPTY: Final = frozenset(("assistant", "tool", "function"))
RESERVED: Final = frozenset({"add_generation_prompt", "messages", "self"})  # of the template


def check_messages(messages: object) -> list[Message]:
    """The messages, each with a text or a list of text parts as its `content`.

    Keys with the value None count as absent. Messages of the assistant and results of tools need no
    content. Other keys go to the template unchanged.

    Raises:
        RequestError: not a list of messages; names the place.
    """
    if not isinstance(messages, list | tuple):
        raise _refused("messages", messages, "must be a list")
    if not 1 <= len(messages) <= N_MESSAGES_MAX:
        raise RequestError(
            f'"messages" must have at least 1 and at most {N_MESSAGES_MAX} messages, '
            f"found {len(messages)}"
        )
    return [_checked(f"messages[{i}]", message) for i, message in enumerate(messages)]


def check_template_options(options: Mapping[str, object]) -> None:
    """Raises RequestError if a name of `options` is no text, if they replace variables that the
    messages decide, or have tools that no template can print."""
    for name in options:
        if not isinstance(name, str):
            raise _refused("chat_template_kwargs", name, "must have names that are strings")
    taken = RESERVED & options.keys()
    if taken:
        raise RequestError(f'"chat_template_kwargs" must not set {sorted(taken)}')
    tools = options.get("tools") or ()
    if not isinstance(tools, list | tuple) or not all(isinstance(one, Mapping) for one in tools):
        raise _refused("chat_template_kwargs.tools", tools, "must be a list of objects")


def _checked(where: str, message: object) -> Message:
    if not isinstance(message, Mapping):
        raise _refused(where, message, "must be an object")
    found: Message = {key: value for key, value in message.items() if value is not None}
    role, content = found.get("role"), found.get("content")
    if role is None:
        raise RequestError(f'"{where}.role" is missing')
    if not isinstance(role, str) or not role:
        raise _refused(f"{where}.role", role, "must be a string that is not empty")
    if content is None:
        if role not in MAY_BE_EMPTY:
            raise _refused(where, message, 'must have a "content"')
        content = ""
    found["content"] = _content(f"{where}.content", content)
    _check_texts(where, found)
    if "tool_calls" in found:  # of any role: templates and their rewriting read them
        found["tool_calls"] = check_calls(f"{where}.tool_calls", found["tool_calls"])
    return found


def _content(where: str, content: object) -> object:
    if isinstance(content, list | tuple):
        return [_part(f"{where}[{i}]", part) for i, part in enumerate(content)]
    if not isinstance(content, str):
        raise _refused(where, content, "must be a string or a list of parts")
    check_utf8(f'"{where}"', content)
    return content


def _part(where: str, part: object) -> object:
    """A checked part of a content."""
    match part:
        case {"type": "text", "text": str(text)}:
            check_utf8(f'"{where}.text"', text)
            return part
        case {"type": "refusal", "refusal": str(text)}:  # OpenAI's, of the assistant
            check_utf8(f'"{where}.refusal"', text)
            return {"type": "text", "text": text}
        case {"type": str(kind)} if kind != "text":
            raise RequestError(
                f'"{where}" is a part of type {kind[:80]!r}: must be "text", as models get texts '
                "only: images, audio and files are not supported yet"
            )
    raise _refused(where, part, 'must have the form {"type": "text", "text": "..."}')


def _check_texts(where: str, message: Message) -> None:
    """Raise RequestError if a key that templates read as a text has another value."""
    for key in TEXTS & message.keys():
        value = message[key]
        if not isinstance(value, str):
            raise _refused(f"{where}.{key}", value, "must be a string")
        check_utf8(f'"{where}.{key}"', value)


def _refused(where: str, value: object, valid: str) -> RequestError:
    return RequestError(f'"{where}" {valid}, found {shortened(value)}')
