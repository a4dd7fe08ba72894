"""The texts that `lamella embed` reads: lines, or JSON. It reads them in parts, never all at once.

JSON is a sequence of lines, each with one value: an object with a text, a text, a list of token
ids, or a list of texts. A file of one long array is read whole. Knows no model. Tested by
tests/cli/test_embed_input.py.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from reprlib import repr as shortened
from typing import BinaryIO, Final

from ..base.errors import RequestError
from ..base.utf8 import BOM, check_utf8, decoded

FIELDS: Final = ("text", "input", "content")  # of an object; the first one that it has
JSON_SUFFIXES: Final = (".json", ".jsonl", ".ndjson")
N_CHUNK: Final = 1 << 18  # bytes
N_LINE_MAX: Final = 64 << 20  # bytes

Lines = list[tuple[str, bytes]]  # with their names


@dataclass(frozen=True, slots=True)
class Text:
    """A text or its token ids. `name` is its place in the input, for messages."""

    name: str
    value: str | Sequence[int]


@contextmanager
def opened_input(path: str | None) -> Iterator[BinaryIO]:
    """The bytes of a file; of stdin without a path.

    Raises:
        RequestError: the file cannot be read.
    """
    if path is None:
        # a program may have put a stream of characters in the place of stdin
        stream = getattr(sys.stdin, "buffer", None)
        yield stream or io.BytesIO(sys.stdin.read().encode(errors="surrogateescape"))
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115
    except OSError as e:
        raise RequestError(f"{path} cannot be read: {e.strerror}") from e
    with file:
        yield file


def read_texts(
    stream: BinaryIO, *, path: str | None = None, kind: str = "auto", separator: str = "\n"
) -> Iterator[Iterable[Text]]:
    """Yield the texts of a stream in parts, as they arrive. A part can be iterated once.

    Args:
        stream: UTF-8.
        path: the file's name. Its suffix tells JSON from lines; without one, the first line does.
        kind: "text", "json" or "auto".
        separator: ends a text, except in JSON.

    Raises:
        RequestError: a text is invalid; names its line and the reason.
    """
    head = "" if path is None else f"{path}, "
    chunks = iter(lambda: stream.read1(N_CHUNK), b"")  # type: ignore[attr-defined]
    first = next(chunks, b"")
    is_json = kind == "json" or (kind == "auto" and _has_json_suffix(path))
    if is_json:
        first = _with_whole_line(first, chunks)
    elif kind == "auto" and _begins_as_json(first):
        first = _with_whole_line(first, chunks, N_LINE_MAX)
        is_json = _is_json(first)
    if is_json:
        yield from _json_texts(first, chunks, head)
        return
    for lines in _split(chain([first], chunks), separator.encode(), head):
        yield (_line_text(name, data, separator) for name, data in lines)


def split_texts(text: str, separator: str) -> Iterator[Iterable[Text]]:
    """The texts of an argument."""
    parts = text.removesuffix(separator).split(separator) if separator else [text]
    names = [f"text {i}" for i in range(1, len(parts) + 1)] if len(parts) > 1 else ["the text"]
    yield [Text(name, part) for name, part in zip(names, parts, strict=True)]


# --- lines ---


def _split(chunks: Iterable[bytes], separator: bytes, head: str) -> Iterator[Lines]:
    """The lines of a stream, with their names; those of each chunk together."""
    rest, n = b"", 0
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(separator)
        yield [(f"{head}line {n + i}", line) for i, line in enumerate(lines, 1)]
        n += len(lines)
        if len(rest) > N_LINE_MAX:
            raise RequestError(f"{head}line {n + 1} is longer than {N_LINE_MAX} bytes")
    if rest:
        yield [(f"{head}line {n + 1}", rest)]


def _line_text(name: str, data: bytes, separator: str) -> Text:
    return Text(name, decoded(name, data.removesuffix(b"\r") if separator == "\n" else data))


# --- JSON ---


def _has_json_suffix(path: str | None) -> bool:
    return path is not None and path.lower().endswith(JSON_SUFFIXES)


def _begins_as_json(chunk: bytes) -> bool:
    return chunk.removeprefix(BOM.encode()).lstrip().startswith((b"[", b"{"))


def _with_whole_line(first: bytes, chunks: Iterator[bytes], n_max: float = math.inf) -> bytes:
    """The first chunk of a stream with those after it, up to the end of the first line that is not
    empty. Not many more than `n_max` bytes of it."""
    found, text = bytearray(first), first.lstrip()
    while b"\n" not in text and len(found) <= n_max:
        chunk = next(chunks, b"")
        if not chunk:
            break
        text = chunk if text else chunk.lstrip()
        found += chunk
    return bytes(found)


def _first_line(chunk: bytes) -> bytes:
    return chunk.removeprefix(BOM.encode()).lstrip().partition(b"\n")[0].strip()


def _is_json(chunk: bytes) -> bool:
    """True if the first line is JSON with texts."""
    line = _first_line(chunk)
    try:
        return line in (b"[", b"{") or bool(_values("", json.loads(line)))
    except (ValueError, RecursionError, RequestError):
        return False


def _json_texts(first: bytes, chunks: Iterable[bytes], head: str) -> Iterator[Iterable[Text]]:
    """The texts of lines of JSON; of one document if the first line is no value. `first` has the
    first line."""
    try:
        json.loads(_first_line(first) or b"[]")
    except (ValueError, RecursionError):
        name = head.removesuffix(", ") or "the input"
        yield _values(name, _parsed(name, first + b"".join(chunks)))
        return
    for lines in _split(chain([first], chunks), b"\n", head):
        # there may be empty lines between those with values
        values = ((name, _parsed(name, data)) for name, data in lines if data.strip())
        yield (text for name, value in values for text in _values(name, value))


def _parsed(name: str, data: bytes) -> object:
    try:
        return json.loads(decoded(name, data))
    except ValueError as e:
        raise RequestError(f"{name} is not JSON: {e}") from None
    except RecursionError:
        raise RequestError(f"{name} is nested too deeply") from None


def _values(name: str, value: object) -> list[Text]:
    """The texts of a JSON value."""
    if isinstance(value, dict):
        field = next((field for field in FIELDS if field in value), None)
        if field is None:
            raise RequestError(f"{name}: the object has none of {', '.join(FIELDS)}")
        name, value = f"{name}, {field}", value[field]
        if not value:
            return [_text(name, value)]
    if isinstance(value, list) and not (value and _is_id(value[0])):
        return [_text(f"{name}, text {i}", one) for i, one in enumerate(value, 1)]
    return [_text(name, value)]


def _text(name: str, value: object) -> Text:
    """A text. Raises RequestError: neither a string nor token ids."""
    if isinstance(value, str):
        check_utf8(name, value)
        return Text(name, value)
    if isinstance(value, list) and all(map(_is_id, value)):
        return Text(name, value)
    raise RequestError(f"{name}: {shortened(value)} is neither a text nor a list of token ids")


def _is_id(value: object) -> bool:
    return type(value) is int
