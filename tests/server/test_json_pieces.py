"""JSON in pieces: the same values as `json.dumps`, made as they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lamella.server.json_pieces import N_PIECE, JsonPart, json_list, json_texts, pieces


def test_parts_are_values_anywhere() -> None:
    inner = json_list([json_texts({"x": JsonPart([b"1", b"2"])}), [b'"a"']])
    value = {"first": JsonPart([b"null"]), "list": [1, inner, json_list([])], "text": 'é"%s'}
    found = json.loads(b"".join(json_texts(value)))
    assert found == {"first": None, "list": [1, [{"x": 12}, "a"], []], "text": 'é"%s'}


def test_a_value_without_parts_has_the_text_of_dumps() -> None:
    value = {"a": [1, 2.5, None, True], "b": {"c": "\ud800\n"}}
    assert b"".join(json_texts(value)).decode() == json.dumps(value)


@pytest.mark.parametrize(("value", "error"), [(float("nan"), ValueError), (b"a", TypeError)])
def test_values_that_json_lacks_are_refused(value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        list(json_texts({"a": [value]}))


def test_elements_are_made_when_they_are_read() -> None:
    made = []

    def elements() -> Iterator[Iterator[bytes]]:
        for i in range(100):
            made.append(i)
            yield json_texts("a" * (N_PIECE // 4))

    parts = pieces(json_texts({"list": json_list(elements())}))
    first = next(parts)
    assert N_PIECE <= len(first) < 2 * N_PIECE
    assert len(made) <= 5
    assert len(json.loads(first + b"".join(parts))["list"]) == 100
