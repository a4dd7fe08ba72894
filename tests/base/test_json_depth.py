"""The limit of nested JSON values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lamella.base.errors import RequestError
from lamella.base.json_depth import N_DEPTH_MAX, check_depth, check_text_depth


def nested(depth: int, begin: str = '{"a":', end: str = "}") -> str:
    """A JSON text with `depth` arrays or objects inside each other."""
    return begin * depth + "1" + end * depth


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_the_limit(begin: str, end: str) -> None:
    n = N_DEPTH_MAX // (begin.count("[") + begin.count("{"))
    text, deeper = nested(n, begin, end), nested(n + 1, begin, end)
    check_depth("x", json.loads(text))
    check_text_depth("x", text)
    for check in (check_text_depth, lambda name, text: check_depth(name, json.loads(text))):
        with pytest.raises(RequestError, match=r'"x[\[.].* too deeply: at most 100 arrays'):
            check("x", deeper)


def test_the_path() -> None:
    value: Any = {"b": [1, {"c": []}]}
    check_depth("a", value, 4)
    with pytest.raises(RequestError, match=r'^"a\.b\[1\]\.c" is nested too deeply: at most 3'):
        check_depth("a", value, 3)
    with pytest.raises(RequestError) as caught:
        check_depth("a", json.loads(nested(101, '{"long name":')))
    assert len(str(caught.value)) < 300


def test_values_without_depth() -> None:
    for value in ("a", 1, None, [], {}, [1, "["], {"a": "{"}):
        check_depth("x", value, 1)
    wide = [[i] for i in range(1000)]
    check_depth("x", wide)
    check_text_depth("x", json.dumps(wide))


def test_texts_that_are_no_json() -> None:
    for text in ("[" * 500, "", "{" * 101 + "x", '{"a": ' + "[" * 200):
        check_text_depth("x", text)
    with pytest.raises(RequestError, match=r'^"x" is nested too deeply'):
        check_text_depth("x", nested(100_000, "[", "]"))
