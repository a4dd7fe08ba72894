"""Finds fields of a JSON body, such as `model`, and reads no more than them.

A body may have megabytes and is passed on as it is. So this jumps from string to string, in many
short steps, and stops at the field. It does not check the rest: the model's process does.
Tested by tests/server/test_router_body.py.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Final

from ...base.errors import RequestError

N_NAME_BYTES_MAX: Final = 4096
N_SCALAR_BYTES_MAX: Final = 100
_COLON: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")


def model_in(body: bytes) -> str | None:
    """The value of `model` in an object; None if the object does not have it.

    Raises:
        RequestError: the field is no text.
    """
    at = value_at(body, b"model")
    return None if at < 0 else _name(body, at)


def scalar_in(body: bytes, key: str) -> object:
    """The value of a field of an object that is a number or a short text; None if the object does
    not have it.

    Raises:
        RequestError: it is none of these.
    """
    at = value_at(body, key.encode())
    if at < 0:
        return None
    part = body[at : at + N_SCALAR_BYTES_MAX].decode("utf-8", "ignore")
    with suppress(ValueError):
        value, end = json.JSONDecoder().raw_decode(part)
        if not isinstance(value, dict | list) and end < N_SCALAR_BYTES_MAX:
            found: object = value
            return found
    raise RequestError(f'"{key}" must be a number or a short text')


def is_empty_in(body: bytes, key: str) -> bool:
    """True if an object does not have a field, or its value is empty or null."""
    at = value_at(body, key.encode())
    return at < 0 or body.startswith((b'""', b"[]", b"null"), at)


def value_at(body: bytes, key: bytes) -> int:
    """Where the value of a field of an object begins; -1 if the object does not have it."""
    quoted = b'"%b"' % key
    at, depth = 0, 0
    while (begin := body.find(b'"', at)) >= 0:
        depth += _levels(body, at, begin)
        end = _end_of_string(body, begin)
        if end < 0:
            return -1
        if depth == 1 and end - begin == len(key) + 1 and body.startswith(quoted, begin):
            colon = _COLON.match(body, end + 1)
            if colon is not None:
                return colon.end()
        at = end + 1
    return -1


def _levels(body: bytes, begin: int, end: int) -> int:
    """How many levels deeper the end of a part without strings is than its begin."""
    opened = body.count(b"{", begin, end) + body.count(b"[", begin, end)
    return opened - body.count(b"}", begin, end) - body.count(b"]", begin, end)


def _end_of_string(body: bytes, begin: int) -> int:
    """Where the quote is that ends the string; -1 if none does."""
    end = body.find(b'"', begin + 1)
    while end >= 0 and _is_escaped(body, begin, end):
        end = body.find(b'"', end + 1)
    return end


def _is_escaped(body: bytes, begin: int, at: int) -> bool:
    """True if an odd number of backslashes is before a place in a string."""
    n = 0
    while at - n - 1 > begin and body[at - n - 1] == ord("\\"):
        n += 1
    return n % 2 == 1


def _name(body: bytes, begin: int) -> str | None:
    """The text that begins here. Raises RequestError if there is none."""
    if body.startswith(b"null", begin):
        return None
    end = _end_of_string(body, begin) if body.startswith(b'"', begin) else -1
    if end < 0 or end - begin > N_NAME_BYTES_MAX:
        raise RequestError(f"model must be a text of at most {N_NAME_BYTES_MAX} bytes")
    try:
        name: str = json.loads(body[begin : end + 1])
    except ValueError:
        raise RequestError("model is no valid JSON text") from None
    return name
