"""Reads JSON in a text, and writes values of other notations as JSON.

Streamed values are not checked: only strings and brackets decide where a value ends.
Tests: tests/model/test_chat_parser.py.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Final

from .schema_types import ALL_TYPES, type_of
from .text import Cursor, Reading, peek

Emit = Callable[[str], None]

_NEXT: Final = re.compile(r'["{}\[\]]')
_NEXT_IN_STRING: Final = re.compile(r'["\\]')
_SCALAR: Final = re.compile(r"[^\s,\]}]*")
_ERRORS: Final = (ValueError, SyntaxError, MemoryError, RecursionError)


def brackets(cursor: Cursor, emit: Emit) -> Reading[bool]:
    """Pass an object or a list to `emit` as it comes. Return False if the text ended before."""
    depth, in_string, escaped = 0, False, False
    while True:
        text, at, end = cursor.view()
        i = at
        while i < end:
            if escaped:
                escaped = False
                i += 1
                continue
            match = (_NEXT_IN_STRING if in_string else _NEXT).search(text, i, end)
            if match is None:
                i = end
                break
            i = match.end()
            char = match[0]
            if char == '"':
                in_string = not in_string
            elif char == "\\":
                escaped = True
            else:
                depth += 1 if char in "{[" else -1
                if depth == 0:
                    break
        is_whole = depth == 0 and i > at
        if piece := cursor.take(i - at):
            emit(piece)
        if is_whole or cursor.ended:
            return is_whole
        yield


def string(cursor: Cursor, pieces: list[str] | None = None) -> Reading[str | None]:
    """Return the text of the JSON string that begins here; None if it is broken or cut off.

    Args:
        pieces: takes the text as it is written.
    """
    assert (yield from peek(cursor)) == '"'
    pieces = [] if pieces is None else pieces
    i, escaped = 1, False
    while True:
        text, at, end = cursor.view()
        i += at
        while i < end:
            if escaped:
                escaped = False
                i += 1
                continue
            match = _NEXT_IN_STRING.search(text, i, end)
            i = match.end() if match else end
            escaped = match is not None and match[0] == "\\"
            if match is not None and not escaped:
                pieces.append(text[at:i])
                cursor.pos += i - at
                return _decoded("".join(pieces))
        pieces.append(text[at:end])
        cursor.pos += end - at
        i = 0
        if cursor.ended:
            return None
        yield


def scalar(cursor: Cursor) -> Reading[str]:
    """Return the text up to white space, a comma or a closing bracket."""
    pieces: list[str] = []
    while True:
        text, at, end = cursor.view()
        match = _SCALAR.match(text, at, end)
        assert match
        pieces.append(match[0])
        cursor.pos += match.end() - at
        if match.end() < end or cursor.ended:
            return "".join(pieces)
        yield


def value(cursor: Cursor, emit: Emit) -> Reading[bool]:
    """Pass the JSON of a call's arguments to `emit`. Return False if the text ended before.

    A string has the JSON of the arguments, as in OpenAI's API. Null means no arguments.
    """
    first = yield from peek(cursor)
    if first in ("{", "["):
        return (yield from brackets(cursor, emit))
    if first == '"':
        pieces: list[str] = []
        emit((yield from string(cursor, pieces)) or "".join(pieces))
    else:
        text = yield from scalar(cursor)
        emit("{}" if text == "null" else text)
    return bool((yield from peek(cursor)))


def quoted(text: str) -> str:
    """The JSON string of a text."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """The text as it stands inside a JSON string."""
    return quoted(text)[1:-1]


def is_json(text: str) -> bool:
    """Return True if a text is JSON, by the letter of its specification."""
    try:
        json.loads(text, parse_constant=_refused)
    except _ERRORS:
        return False
    return True


def from_python(text: str) -> str | None:
    """The JSON of a Python literal; None if it is none."""
    for source in (text, text.replace("\n", "\\n").replace("\r", "\\r")):
        try:
            found = ast.literal_eval(source)
            return _with_pairs(json.dumps(found, ensure_ascii=False, allow_nan=False))
        except (*_ERRORS, TypeError):
            continue
    return None


def typed(text: str, types: frozenset[str]) -> str:
    """The JSON of a value that was written without quotes around strings.

    Args:
        types: the JSON types that the value may have.
    """
    if types == {"string"}:
        return quoted(text)
    body = text.strip()
    if "string" not in types:
        return body if is_json(body) else from_python(body) or quoted(text)
    others = types if types == ALL_TYPES else types - {"string"}
    return body if is_json(body) and type_of(body) & others else quoted(text)


def _decoded(text: str) -> str | None:
    try:
        found = json.loads(text, strict=False)
    except _ERRORS:
        return None
    assert isinstance(found, str)
    return _with_pairs(found)


def _with_pairs(text: str) -> str:
    """The text with a character for each pair of surrogates, which escapes may leave. Those that
    are alone become U+FFFD, for no prompt and no file can have them."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _refused(name: str) -> None:
    raise ValueError(name)
