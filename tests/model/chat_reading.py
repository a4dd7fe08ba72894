"""Reading an answer with a format's parser, and the tools that it may call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

from lamella.model.chat.formats import FORMATS, GENERIC, ChatFormat, Marks
from lamella.model.chat.message import ChatMessage, Delta, Tool
from lamella.model.chat.parser import ChatParser

ALL = {format.name: format for format in (*FORMATS, GENERIC)}
THINK = Marks("<think>", "</think>")
PROPERTIES = {
    "text": {"type": "string"},
    "n": {"type": "integer"},
    "list": {"type": "array"},
    "either": {"type": ["string", "null"]},
    "ref": {"$ref": "#/$defs/name"},
}
TOOLS = [
    Tool(
        name="f",
        parameters={
            "type": "object",
            "properties": PROPERTIES,
            "$defs": {"name": {"enum": ["1", "2"]}},
        },
    ),
    Tool(name="get_time"),
]


def chat_parser(format: str | ChatFormat, **options: Any) -> ChatParser:
    numbers = count()
    found = ALL[format] if isinstance(format, str) else format
    if not found.reasoning:
        found = replace(found, reasoning=(THINK,))
    tools = options.pop("tools", TOOLS)
    return ChatParser(found, tools, new_id=lambda: f"new{next(numbers)}", **options)


def read(format: str | ChatFormat, pieces: str | Iterable[str], **options: Any) -> ChatMessage:
    """Read pieces of text. Check that the deltas add up to the message."""
    parser = chat_parser(format, **options)
    added = ChatMessage()
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        added.add(parser.push(piece))
    added.add(parser.finish())
    assert added == parser.message
    return added


def deltas(format: str, *pieces: str, **options: Any) -> list[list[Delta]]:
    """The deltas of each piece, then those of the end."""
    parser = chat_parser(format, **options)
    return [*(parser.push(piece) for piece in pieces), parser.finish()]
