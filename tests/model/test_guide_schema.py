"""JSON schemas: what each keyword accepts, alone and with others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from schemas import SchemaGrammar, is_valid

D4 = "http://json-schema.org/draft-04/schema#"
D7 = "http://json-schema.org/draft-07/schema#"
NAME = {"type": "string", "minLength": 1}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
SHAPE = {
    "oneOf": [
        {"properties": {"kind": {"const": "dot"}, "x": {"type": "integer"}}, "required": ["kind"]},
        {"properties": {"kind": {"const": "box"}, "w": {"type": "integer"}}, "required": ["kind"]},
    ],
    "type": "object",
}

CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "true": (True, [None, 1, "a", [{}], {"a": [1.5]}], []),
    "type": ({"type": ["null", "integer"]}, [None, 3, -20], ["a", 1.5, True, []]),
    "enum": ({"enum": [1, "a", None, {"b": [1]}]}, [1, "a", None, {"b": [1]}], [2, "b", {}, []]),
    "const": ({"const": {"a": 1.5}}, [{"a": 1.5}], [{"a": 1}, {}, 1.5]),
    "enum beside type": ({"enum": [1, "a", 2.5], "type": "number"}, [1, 2.5], ["a"]),
    "enum beside pattern": ({"enum": ["ab", "b"], "pattern": "^a"}, ["ab"], ["b", "a"]),
    "true is not 1": ({"enum": [True, [0]]}, [True, [0]], [1, [False]]),
    "minimum": ({"minimum": 2}, [2, 2.5, "a", 10**6], [1, 1.99, -3]),
    "exclusive": ({"exclusiveMinimum": 2, "exclusiveMaximum": 3.5}, [2.001, 3], [2, 3.5, 4]),
    "draft 4 exclusive": (
        {"$schema": D4, "minimum": 2, "exclusiveMinimum": True, "type": "number"},
        [2.1, 3],
        [2, 1],
    ),
    "multipleOf": ({"type": "integer", "multipleOf": 7, "minimum": 10}, [14, 7000], [7, 15, 0]),
    "multipleOf 0.01": ({"type": "number", "multipleOf": 0.01}, [100.0, 5, 8.25], [1.001, 0.005]),
    "length": ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "äöü"], ["a", "abcd"]),
    "pattern": ({"type": "string", "pattern": "a\\d$"}, ["a1", "xxa9"], ["a1b", "1a"]),
    "lookahead": ({"type": "string", "pattern": "^(?!x)[a-z]+$"}, ["ax", "b"], ["x", "xa", ""]),
    "two patterns": ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ["ab", "b_a"], ["a", "b"]),
    "not pattern": ({"type": "string", "not": {"pattern": "^a"}}, ["b", ""], ["a", "ab"]),
    "items": ({"items": {"type": "integer"}}, [[], [1, 2], "a"], [["a"], [1, None]]),
    "prefixItems": (
        {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        [[], [1], [1, "a"]],
        [["a"], [1, 1], [1, "a", 1]],
    ),
    "draft 7 items": (
        {"$schema": D7, "items": [{"type": "integer"}], "additionalItems": {"type": "null"}},
        [[], [1], [1, None, None]],
        [[None], [1, 1]],
    ),
    "minItems": (
        {"type": "array", "minItems": 2, "maxItems": 3, "items": {"const": 1}},
        [[1, 1], [1, 1, 1]],
        [[], [1], [1] * 4],
    ),
    "contains": ({"contains": {"const": 1}}, [[1], [2, 1], [1, 2], "a"], [[], [2]]),
    "minContains": (
        {"contains": {"const": 1}, "minContains": 2, "maxContains": 3},
        [[1, 1], [1, 2, 1, 1]],
        [[1], [1, 1, 1, 1], [2]],
    ),
    "minContains 0": ({"contains": {"const": 1}, "minContains": 0}, [[], [2]], []),
    "uniqueItems": (
        {"items": {"enum": ["a", "b", 1]}, "uniqueItems": True, "type": "array"},
        [[], ["a"], [1, "a", "b"]],
        [["a", "a"], [1, "b", 1], ["c"]],
    ),
    "uniqueItems of one": (
        {"uniqueItems": True, "maxItems": 1, "type": "array"},
        [[], [{}]],
        [[1, 1]],
    ),
    "properties": (
        {"properties": {"a": NAME, "b": {"type": "null"}}, "required": ["b"]},
        [{"b": None}, {"a": "x", "b": None}, {"b": None, "c": 1}, 3],
        [{}, {"a": "", "b": None}, {"a": "x"}],
    ),
    "additionalProperties": (
        {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
        [{"a": "x", "b": 1}, {"b": 1, "c": 2}],
        [{"b": "x"}],
    ),
    "patternProperties": (
        {"patternProperties": {"^x": {"type": "integer"}, "y$": {"minimum": 5}}},
        [{"x": 1, "y": 7, "xy": 5}, {"z": None}],
        [{"x": "a"}, {"xy": 4}, {"xy": "a"}],
    ),
    "pattern of a property": (
        {"properties": {"xa": {"maximum": 5}}, "patternProperties": {"^x": {"type": "integer"}}},
        [{"xa": 4}],
        [{"xa": 6}, {"xa": "a"}, {"xb": "a"}],
    ),
    "propertyNames": ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}, {}], [{"abc": 1}]),
    "propertyNames enum": (
        {"propertyNames": {"enum": ["a", "b"]}, "minProperties": 1, "type": "object"},
        [{"a": 1}, {"a": 1, "b": 2}],
        [{}, {"c": 1}],
    ),
    "names that are objects": ({"propertyNames": {"$ref": "#"}}, [{}, {"a": 1}, 3], []),
    "minProperties": ({"type": "object", "minProperties": 1.0}, [{"a": 1}], [{}]),
    "minProperties of names": (
        {
            "properties": {"a": {}, "b": {}, "c": {}},
            "additionalProperties": False,
            "minProperties": 2,
        },
        [{"a": 1, "b": 1}, {"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}],
        [{}, {"b": 1}],
    ),
    "maxProperties": (
        {"properties": {"a": {}, "b": {}}, "maxProperties": 2},
        [{"a": 1, "b": 1}, {"b": 1, "z": 1}, {}],
        [{"a": 1, "b": 1, "c": 1}, {"x": 1, "y": 1, "z": 1}],
    ),
    "bounds that exclude each other": (
        {"minProperties": 2, "maxProperties": 1, "properties": {"a": {}, "b": {}}},
        [1, "a"],
        [{}, {"a": 1}, {"a": 1, "b": 1}],
    ),
    "not required": (
        {"properties": {"a": {}}, "not": {"required": ["a"]}, "type": "object"},
        [{}, {"b": 1}],
        [{"a": 1}],
    ),
    "not type": ({"not": {"type": ["string", "integer"]}}, [None, 1.5, [], {}], ["a", 1]),
    "not enum": ({"type": "string", "not": {"enum": ["a", "b"]}}, ["", "c", "aa"], ["a", "b"]),
    "not const object": (
        {"not": {"const": {"a": 1}}},
        [{}, {"a": 2}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    "not number": ({"type": "number", "not": {"minimum": 3}}, [2.9, -1], [3, 4]),
    "not allOf": (
        {"type": "integer", "not": {"allOf": [{"minimum": 3}, {"maximum": 5}]}},
        [2, 6],
        [3, 5],
    ),
    "if": (
        {
            "properties": {"kind": {"enum": ["a", "b"]}, "v": {"type": ["integer", "string"]}},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"properties": {"v": {"type": "integer"}}, "required": ["v"]},
            "else": {"properties": {"v": {"type": "string"}}},
            "type": "object",
        },
        [{"kind": "a", "v": 1}, {"kind": "b", "v": "x"}, {"kind": "b"}],
        [{"kind": "a"}, {"kind": "a", "v": "x"}, {"kind": "b", "v": 1}],
    ),
    "oneOf by a constant": (
        SHAPE,
        [{"kind": "dot", "x": 1}, {"kind": "box", "w": 1}, {"kind": "dot", "w": "free"}],
        [{"kind": "dot", "x": "a"}, {"kind": "no"}, {}],
    ),
    "oneOf that overlaps": (
        {"oneOf": [{"type": "integer"}, {"minimum": 2}], "type": "number"},
        [1, 2.5],
        [3, 1.5],
    ),
    "oneOf by required": (
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}},
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 1}, {}],
    ),
    "anyOf": (
        {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]},
        ["a", 3],
        [2, None],
    ),
    "allOf": (
        {"allOf": [{"properties": {"a": {"minimum": 1}}}, {"properties": {"a": {"maximum": 2}}}]},
        [{"a": 1}, {"a": 2}],
        [{"a": 0}, {"a": 3}],
    ),
    "dependentRequired": (
        {"properties": {"a": {}, "b": {}}, "dependentRequired": {"b": ["a"]}},
        [{}, {"a": 1}, {"a": 1, "b": 1}],
        [{"b": 1}],
    ),
    "dependencies": (
        {"properties": {"a": {}}, "dependencies": {"a": {"maxProperties": 1}}},
        [{"a": 1}, {"x": 1, "y": 1}],
        [{"a": 1, "b": 1}],
    ),
    "recursive": (TREE, [{"v": 1}, {"v": 1, "next": {"v": 2}}], [{}, {"v": 1, "next": {}}]),
    "$ref with siblings": (
        {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n", "minimum": 3},
        [3],
        [2, "a"],
    ),
    "draft 7 $ref hides its siblings": (
        {
            "$schema": D7,
            "definitions": {"n": {"type": "integer"}},
            "$ref": "#/definitions/n",
            "minimum": 3,
        },
        [2],
        ["a"],
    ),
    "$anchor": ({"$defs": {"n": {"$anchor": "x", "const": 1}}, "$ref": "#x"}, [1], [2]),
    "$id": (
        {
            "$id": "http://a.b/c/d.json",
            "$defs": {"n": {"$id": "e.json", "$defs": {"m": {"const": 1}}, "$ref": "#/$defs/m"}},
            "$ref": "http://a.b/c/e.json",
        },
        [1],
        [2],
    ),
    "unevaluatedProperties": (
        {
            "anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}],
            "unevaluatedProperties": False,
            "type": "object",
        },
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"c": 1}, {"a": 1, "c": 1}],
    ),
    "unevaluatedItems": (
        {"prefixItems": [{"const": 1}], "unevaluatedItems": False, "type": "array"},
        [[], [1]],
        [[1, 2], [2]],
    ),
    "unevaluatedItems beside contains": (
        {"contains": {"const": 1}, "unevaluatedItems": {"type": "string"}, "type": "array"},
        [[1], ["a", 1, "b", 1]],
        [["a"], [1, 2], []],
    ),
    "unevaluatedItems that recurs": (
        {"contains": {"const": 1}, "unevaluatedItems": {"$ref": "#"}, "type": "array"},
        [[1], [1, [1]], [[1, 1], 1]],
        [[], [2, 1], [1, []]],
    ),
    "a property that nothing meets": ({"properties": {"a": False}}, [{}, {"b": 1}], [{"a": 1}]),
    "unknown keywords": (
        {"type": "null", "x-a": 1, "title": 3, "x-guidance": {"lenient": True}},
        [None],
        [1],
    ),
    "format of numbers": ({"type": "integer", "format": "uint8"}, [0, 255], [256]),
}
# the reference knows these by another draft only, or not at all
NOT_IN_REFERENCE = {"dependencies", "format of numbers"}


@pytest.mark.parametrize("name", CASES)
def test_keywords(name: str) -> None:
    schema, valid, invalid = CASES[name]
    grammar = SchemaGrammar(schema)
    for values, expected in ((valid, True), (invalid, False)):
        for value in values:
            assert grammar.accepts_value(value) is expected, value
            assert name in NOT_IN_REFERENCE or is_valid(schema, value) is expected, value


def test_branches_of_a_recursive_one_of_stay_exact() -> None:
    """The proof that the branches are disjoint needs the schema that it is for."""
    left = {"left": {"$ref": "#/$defs/p"}}
    short = {"type": "object", "required": ["left"], "properties": {**left, "x": {"const": 1}}}
    long = {"type": "object", "required": ["left", "x"], "properties": left}
    schema = {"$defs": {"p": {"oneOf": [short, long, {"const": 0}]}}, "$ref": "#/$defs/p"}
    grammar = SchemaGrammar(schema)
    for value in (0, 5, {"left": 0}, {"left": 5}, {"left": 0, "x": 1}, {"left": 0, "x": 2}):
        assert grammar.accepts_value(value) is is_valid(schema, value), value


def test_values_that_utf_8_cannot_express_are_left_out() -> None:
    schema = {"type": "array", "items": {"enum": ["\ud800", "a", {"\udc00": 1}]}}
    for unique in (False, True):
        grammar = SchemaGrammar({**schema, "uniqueItems": unique})
        assert grammar.accepts('["a"]') and grammar.random_text(3)
    properties: dict[str, Any] = {"\ud800": {}, "b": {}}
    grammar = SchemaGrammar(
        {"properties": properties, "type": "object", "not": {"const": "\ud800"}}
    )
    assert grammar.accepts('{"b": 1}')


def test_deep_values_and_schemas() -> None:
    tree = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/t"}}]}
    value: Any = None
    for _ in range(95):
        value = [value]
    schema = {"$defs": {"t": tree}, "allOf": [{"$ref": "#/$defs/t"}, {"const": value}]}
    assert SchemaGrammar(schema).accepts_value(value)


def test_an_escaped_name_is_the_same_property() -> None:
    """llguidance's own schemas take an escaped name for another property."""
    grammar = SchemaGrammar({"properties": {"a": {"type": "integer"}}})
    assert grammar.accepts('{"a": 1}')
    assert not grammar.accepts('{"\\u0061": "x"}')


def test_pretty_and_compact_texts_match_and_no_more_blanks() -> None:
    grammar = SchemaGrammar({"type": "object"})
    value = {"a": [1, {"b": {"c": [[], {}]}}], "d": "x"}
    for text in (
        json.dumps(value),
        json.dumps(value, separators=(",", ":")),
        json.dumps(value, indent=2),
        json.dumps(value, indent=4),
        json.dumps(value, indent="\t"),
    ):
        assert grammar.accepts(text), text
    for text in (' {"a":1}', '{"a":1} ', '{"a":1}\n', '{   "a":1}', '{\n\n"a":1}', '{"a" :\r1}'):
        assert not grammar.accepts(text), text
