"""JSON texts that are made in pieces, so that memory holds few of them, and none takes long.

A value may contain a `JsonPart`, whose text is made when it is written. Knows no API and no socket.
Tested by tests/server/test_json_pieces.py.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

# stands for a part; random, so that no other value contains it
_MARK: Final = secrets.token_hex(16)
N_PIECE: Final = 128 * 1024  # bytes of a piece, at least, but for the last one


@dataclass(frozen=True, slots=True)
class JsonPart:
    """A value within a JSON value: its text in pieces, which are read once."""

    texts: Iterable[bytes]


def json_texts(value: object, separators: tuple[str, str] = (", ", ": ")) -> Iterator[bytes]:
    """The text of a JSON value in pieces. Raises ValueError for NaN and infinity."""
    parts: list[JsonPart] = []

    def mark(part: Any) -> str:
        if not isinstance(part, JsonPart):
            raise TypeError(f"{type(part).__name__} is no JSON value")
        parts.append(part)
        return _MARK

    text = json.dumps(value, allow_nan=False, separators=separators, default=mark)
    begin, *others = text.split(f'"{_MARK}"')
    yield begin.encode()
    for part, after in zip(parts, others, strict=True):
        yield from part.texts
        yield after.encode()


def json_list(elements: Iterable[Iterable[bytes]]) -> JsonPart:
    """A list with these elements: the pieces of the text of each."""
    return JsonPart(_list_texts(elements))


def _list_texts(elements: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    separator = b"["
    for texts in elements:
        yield separator
        yield from texts
        separator = b","
    yield b"]" if separator == b"," else b"[]"


def pieces(texts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of at least `N_PIECE`; the last piece may be shorter."""
    waiting: list[bytes] = []
    n = 0
    for text in texts:
        waiting.append(text)
        n += len(text)
        if n >= N_PIECE:
            yield b"".join(waiting)
            waiting, n = [], 0
    if waiting:
        yield b"".join(waiting)
