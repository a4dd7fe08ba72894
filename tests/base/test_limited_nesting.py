"""Values that are nested too deeply are errors of the caller."""

from __future__ import annotations

import pytest

from lamella.base.errors import RequestError
from lamella.base.nesting import limited_nesting


def depth(value: object) -> int:
    return 1 + depth(value[0]) if isinstance(value, list) and value else 0


def nested(n: int) -> object:
    found: list[object] = []
    for _ in range(n):
        found = [found]
    return found


def test_a_value_for_which_the_stack_is_too_small() -> None:
    with limited_nesting("the value"):
        assert depth(nested(50)) == 50
    with (
        pytest.raises(RequestError, match="the value is nested too deeply"),
        limited_nesting("the value"),
    ):
        depth(nested(100_000))


def test_a_function_may_be_limited() -> None:
    limited = limited_nesting("its argument")(depth)
    assert limited(nested(3)) == 3
    for _ in range(2):
        with pytest.raises(RequestError, match="its argument is nested too deeply"):
            limited(nested(100_000))
