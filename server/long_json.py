"""Parses long JSON texts in many short calls. `json.loads` is one call that holds the interpreter's
lock, so the event loop would wait for it.

The values of the outer object, and the elements of lists in it, are parsed one by one. Long lists
of numbers are parsed in runs.
Tested by tests/server/test_long_json.py.
"""

from __future__ import annotations

import re
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final, NoReturn

N_LONG: Final = 256 * 1024  # characters; shorter texts are parsed at once
N_RUN: Final = 64 * 1024
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NUMBERS: Final = re.compile(rf"[-+.eE\d, \t\n\r]{{0,{N_RUN}}}")
_N_LEVELS: Final = 2  # the outer object, and lists in it


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


STRICT: Final = JSONDecoder(parse_constant=_no_number)  # refuses NaN and Infinity


def parse_json(text: str, decoder: JSONDecoder) -> Any:
    """The value of a JSON text. Raises as `decoder.decode`."""
    if len(text) < N_LONG:
        return decoder.decode(text)
    value, end = _value(text, _skip_space(text, 0), decoder, _N_LEVELS)
    end = _skip_space(text, end)
    if end < len(text):
        raise JSONDecodeError("Extra data", text, end)
    return value


def _value(text: str, at: int, decoder: JSONDecoder, n_levels: int) -> tuple[Any, int]:
    """The value that begins at `at`, and its end."""
    match text[at : at + 1]:
        case "{" if n_levels:
            return _object(text, at, decoder, n_levels)
        case "[" if n_levels:
            return _list(text, at, decoder, n_levels)
    return decoder.raw_decode(text, at)


def _object(text: str, at: int, decoder: JSONDecoder, n_levels: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    at = _skip_space(text, at + 1)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, at = decoder.raw_decode(text, at)
        at = _skip_space(text, at)
        if text[at : at + 1] != ":":
            raise JSONDecodeError("Expecting ':' delimiter", text, at)
        found[name], at = _value(text, _skip_space(text, at + 1), decoder, n_levels - 1)
        at, is_end = _next(text, at, "}")
        if is_end:
            return found, at


def _list(text: str, at: int, decoder: JSONDecoder, n_levels: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    at = _skip_space(text, at + 1)
    if text[at : at + 1] == "]":
        return found, at + 1
    while True:
        numbers, at = _numbers(text, at, decoder)
        found += numbers
        value, at = _value(text, at, decoder, n_levels - 1)
        found.append(value)
        at, is_end = _next(text, at, "]")
        if is_end:
            return found, at


def _numbers(text: str, at: int, decoder: JSONDecoder) -> tuple[list[Any], int]:
    """A run of numbers that begins at `at`, but for its last one, which begins at the end."""
    run = _NUMBERS.match(text, at)
    end = text.rfind(",", at, run.end()) if run else -1
    if end > at:
        try:
            return decoder.decode(f"[{text[at:end]}]"), _skip_space(text, end + 1)
        except JSONDecodeError as e:
            raise JSONDecodeError(e.msg, text, at + e.pos - 1) from None
    return [], at


def _next(text: str, at: int, last: str) -> tuple[int, bool]:
    """Where the next element begins; at the end of the container, what follows it, and True."""
    at = _skip_space(text, at)
    mark = text[at : at + 1]
    if mark == last:
        return at + 1, True
    if mark != ",":
        raise JSONDecodeError("Expecting ',' delimiter", text, at)
    return _skip_space(text, at + 1), False


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
