"""Parses long JSON texts in many short calls. `json.loads` is one call that holds the interpreter's
lock, so the event loop would wait for it.

The values of objects and the elements of lists are parsed one by one. Long lists of numbers are
parsed in runs. A long text may have so many values only, as later checks of them are one call.
Tested by tests/server/test_long_json.py.
"""

from __future__ import annotations

import re
from collections import Counter
from json import JSONDecodeError, JSONDecoder
from math import isfinite
from typing import Any, Final, NoReturn

N_LONG: Final = 256 * 1024  # characters; shorter texts are parsed at once
N_VALUES_MAX: Final = 1 << 18  # of a long text; runs of numbers count once
N_RUN: Final = 64 * 1024
# Arrays and objects inside each other, in a field of a body. Python allows 1000 calls inside each
# other. Schemas and arguments have a smaller limit, with an error that says more
N_DEPTH_MAX: Final = 250
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NUMBERS: Final = re.compile(rf"[-+.eE\d, \t\n\r]{{0,{N_RUN}}}")


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these pairs. Raises ValueError if a name occurs twice: readers disagree
    about which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _repeated(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return found


def _repeated(name: str) -> ValueError:
    return ValueError(f'"{name:.80}" occurs twice in the same object')


def _finite(number: str) -> float:
    found = float(number)
    if not isfinite(found):
        raise ValueError(f"{number:.80} is no finite number")
    return found


# refuses NaN, Infinity, numbers that become infinite, and repeated names
STRICT: Final = JSONDecoder(
    parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_without_repeats
)


def parse_json(text: str, decoder: JSONDecoder) -> Any:
    """The value of a JSON text, in which no object has a name twice.

    Raises as `decoder.decode`, and ValueError if a long text has too many values.
    """
    return decoder.decode(text) if len(text) < N_LONG else _Reader(text, decoder).value_of_text()


class _Reader:
    """Reads the values of a long text. Methods return a value and its end."""

    def __init__(self, text: str, decoder: JSONDecoder) -> None:
        self._text = text
        self._decoder = decoder
        self._n_values = 0

    def value_of_text(self) -> Any:
        value, end = self._value(self._skip_space(0))
        end = self._skip_space(end)
        if end < len(self._text):
            raise JSONDecodeError("Extra data", self._text, end)
        return value

    def _value(self, at: int) -> tuple[Any, int]:
        self._n_values += 1
        if self._n_values > N_VALUES_MAX:
            raise ValueError(f"more than {N_VALUES_MAX} values")
        match self._text[at : at + 1]:
            case "{":
                return self._object(at)
            case "[":
                return self._list(at)
        return self._decoder.raw_decode(self._text, at)

    def _object(self, at: int) -> tuple[dict[str, Any], int]:
        text, found = self._text, dict[str, Any]()
        at = self._skip_space(at + 1)
        if text[at : at + 1] == "}":
            return found, at + 1
        while True:
            if text[at : at + 1] != '"':
                message = "Expecting property name enclosed in double quotes"
                raise JSONDecodeError(message, text, at)
            name, at = self._decoder.raw_decode(text, at)
            if name in found:
                raise _repeated(name)
            at = self._skip_space(at)
            if text[at : at + 1] != ":":
                raise JSONDecodeError("Expecting ':' delimiter", text, at)
            found[name], at = self._value(self._skip_space(at + 1))
            at, is_end = self._next(at, "}")
            if is_end:
                return found, at

    def _list(self, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self._skip_space(at + 1)
        if self._text[at : at + 1] == "]":
            return found, at + 1
        while True:
            numbers, at = self._numbers(at)
            found += numbers
            value, at = self._value(at)
            found.append(value)
            at, is_end = self._next(at, "]")
            if is_end:
                return found, at

    def _numbers(self, at: int) -> tuple[list[Any], int]:
        """A run of numbers, but for its last one, which begins at the end."""
        text = self._text
        run = _NUMBERS.match(text, at)
        end = text.rfind(",", at, run.end()) if run else -1
        if end > at:
            try:
                return self._decoder.decode(f"[{text[at:end]}]"), self._skip_space(end + 1)
            except JSONDecodeError as e:
                raise JSONDecodeError(e.msg, text, at + e.pos - 1) from None
        return [], at

    def _next(self, at: int, last: str) -> tuple[int, bool]:
        """Where the next element begins; at the end of the container, what follows it, and True."""
        at = self._skip_space(at)
        mark = self._text[at : at + 1]
        if mark == last:
            return at + 1, True
        if mark != ",":
            raise JSONDecodeError("Expecting ',' delimiter", self._text, at)
        return self._skip_space(at + 1), False

    def _skip_space(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return found.end() if found else at
