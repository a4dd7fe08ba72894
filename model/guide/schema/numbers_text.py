"""The terminals of a set of numbers. Tested by tests/model/test_guide_schema_numbers.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from .limits import WHITESPACE
from .numbers import (
    Interval,
    Numbers,
    decimals_regex,
    integer_ranges,
    integer_step,
    integers_regex,
    listed_multiples,
    texts_regex,
)

# few enough digits that the float is no whole number, either
_WITH_FRACTION: Final = r"/-?[0-9]{1,9}\.[0-9]{0,5}[1-9]/"
_QUARTERS: Final = r"/-?(?:0|[1-9][0-9]{0,11})\.(?:25|5|75)/"
_INT64: Final = 2**63 - 1


def numbers_text(numbers: Numbers, terminal: Callable[[str], str]) -> list[str]:
    """The options of a rule for the numbers; `terminal` names a terminal's body."""
    if numbers.steps:
        return _multiples(numbers, terminal)
    if not numbers.fractions:
        regex = integers_regex(numbers)
        return [terminal(f"/{regex}/")] if regex else []
    regex = decimals_regex(numbers)
    if regex is None:
        return []
    if numbers.integers:
        return [terminal(f"/{regex}/")]
    return [terminal(f"/{regex}/ & {_WITH_FRACTION}")]


def _multiples(numbers: Numbers, terminal: Callable[[str], str]) -> list[str]:
    options = []
    step = integer_step(numbers.steps)
    if numbers.integers and step == 1:
        regex = integers_regex(numbers)
        if regex:
            options.append(
                terminal(f"/(?:{regex})(?:\\.0)?/" if numbers.fractions else f"/{regex}/")
            )
    elif numbers.integers:
        options += [_whole_multiples(step, low, high) for low, high in integer_ranges(numbers)]
    if numbers.fractions:
        texts = listed_multiples(numbers)
        if texts:
            options.append(terminal(f"/{texts_regex(texts)}/"))
        # A float has quarters exactly, so a validator's division is exact, too.
        has_quarters = all(Fraction(1, 4) % Fraction(each) == 0 for each in numbers.steps)
        if has_quarters and numbers.interval == Interval() and not numbers.excluded:
            options.append(terminal(_QUARTERS))
    return options


def _whole_multiples(step: int, low: int | None, high: int | None) -> str:
    schema: dict[str, object] = {"type": "integer", "multipleOf": step}
    if low is not None and low > -_INT64:
        schema["minimum"] = low
    if high is not None and high < _INT64:
        schema["maximum"] = high
    # the same white space as around it, or llguidance keeps two lexers
    schema["x-guidance"] = {"whitespace_pattern": WHITESPACE}
    return f"%json {json.dumps(schema)}"
