"""Ollama's `keep_alive`: how long a model stays in memory after a request.

A number of seconds, or a text like "5m" or "1h30m". 0: the model leaves when its requests have
ended; a negative one: it stays. Tested by tests/server/test_keep_alive.py.
"""

from __future__ import annotations

import math
import re
from typing import Final

from ..given import Given

FIELD: Final = "keep_alive"
SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
VALID: Final = 'a number of seconds, or a text like "5m" or "1h30m"'
N_CHARS_MAX: Final = 40
N_LONG_SECONDS: Final = 1e9  # for ever
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_NUMBER: Final = re.compile(r"\d+(?:\.\d*)?")


def keep_seconds(given: Given) -> float | None:
    """The seconds; infinite for ever; None if it is absent. Raises RequestError."""
    value = given.value
    if value is None:
        return None
    if isinstance(value, str) and len(value) <= N_CHARS_MAX:
        seconds = _seconds(value.strip())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) < N_LONG_SECONDS else math.inf if value > 0 else -1.0
    else:
        seconds = None
    if seconds is None or math.isnan(seconds):
        raise given.wrong(VALID)
    return math.inf if seconds < 0 else seconds


def check_keep_alive(value: object) -> object:
    """Return the value of the field. Raises RequestError."""
    keep_seconds(Given(FIELD, value))
    return value


def _seconds(text: str) -> float | None:
    sign, rest = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if _NUMBER.fullmatch(rest):
        return sign * float(rest)
    parts = _PART.findall(rest)
    if not parts or "".join(number + unit for number, unit in parts) != rest:
        return None
    return sign * sum(float(number) * SECONDS[unit] for number, unit in parts)
