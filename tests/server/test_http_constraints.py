"""The fields that constrain a text, in the forms of all servers: what each one means."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from guides import accepts, byte_vocab
from http_world import make_model

from lamella.base.errors import RequestError
from lamella.model.guide import Compiler, GrammarKind, GrammarSpec
from lamella.runtime.instance import Instance
from lamella.server.parsing import parse_body
from lamella.server.prompts import request_params
from lamella.server.schema import CompletionBody
from lamella.server.schema_chat import ChatBody

GBNF = 'root ::= "yes" | "no"'
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}, "required": ["b"]}
USER = {"role": "user", "content": "hi"}
FORMAT: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def model() -> Instance:
    model = make_model()
    model.engine.close()
    return model


def spec(model: Instance, **fields: object) -> GrammarSpec | None:
    """The grammar of a completion; asserts that a chat with the same fields has the same one."""
    bodies = (
        parse_body(CompletionBody, json.dumps({"prompt": "a", **fields}).encode()),
        parse_body(ChatBody, json.dumps({"messages": [USER], **fields}).encode()),
    )
    first, second = (request_params(model, body).grammar.spec for body in bodies)
    assert first == second
    return first


def schema_spec(schema: object, *, strict: bool = True) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), strict)


@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": SCHEMA},
        {"json_schema": json.dumps(SCHEMA)},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA), "guided_decoding_backend": "xgrammar"},
        {"structured_outputs": {"json": SCHEMA, "regex": None}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "disable_any_whitespace": False}},
        {"structured_outputs": {"json": SCHEMA, "disable_fallback": True, "_backend": "guidance"}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA, "name": "n"}},
        {"response_format": FORMAT},
        {"response_format": {**FORMAT, "json_schema": {"schema": SCHEMA, "strict": True}}},
        {"response_format": {**FORMAT, "json_schema": {"schema": SCHEMA, "strict": None}}},
        {"response_format": {"type": "text"}, "json_schema": SCHEMA},
        {"grammar": "", "regex": None, "json_schema": SCHEMA},
    ],
    ids=str,
)
def test_json_schemas(model: Instance, fields: dict[str, object]) -> None:
    assert spec(model, **fields) == schema_spec(SCHEMA)


@pytest.mark.parametrize("nested", [True, False])
def test_only_strict_false_loosens_a_schema(model: Instance, nested: bool) -> None:
    given = {"schema": SCHEMA, "name": "n", "description": "d", "strict": False}
    found = spec(
        model,
        response_format={"type": "json_schema", **({"json_schema": given} if nested else given)},
    )
    assert found == schema_spec(SCHEMA, strict=False)


@pytest.mark.parametrize("strict", [None, True, False])
def test_a_request_replaces_the_default_strictness(model: Instance, strict: bool | None) -> None:
    model = replace(model, defaults={"schema_strict": False})
    given = {"type": "json_schema", "schema": SCHEMA, "strict": strict}
    assert spec(model, response_format=given) == schema_spec(SCHEMA, strict=strict is True)


def test_strictness_is_no_field_of_its_own(model: Instance) -> None:
    assert spec(model, json_schema=SCHEMA, schema_strict=False) == schema_spec(SCHEMA)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object", "schema": None}},
        {"json_schema": {}},
        {"structured_outputs": {"json_object": True}},
    ],
    ids=str,
)
def test_any_json_object(model: Instance, fields: dict[str, object]) -> None:
    assert spec(model, **fields) == schema_spec({"type": "object"})


def test_a_schema_may_be_a_boolean(model: Instance) -> None:
    assert spec(model, json_schema=True) == spec(model, json_schema="true") == schema_spec(True)


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": GBNF},
        {"guided_grammar": GBNF},
        {"ebnf": GBNF},
        {"structured_outputs": {"grammar": GBNF}},
        {"response_format": {"type": "grammar", "grammar": GBNF}},
    ],
    ids=str,
)
def test_grammars(model: Instance, fields: dict[str, object]) -> None:
    assert spec(model, **fields) == GrammarSpec(GrammarKind.GBNF, GBNF)


def test_lark_is_marked(model: Instance) -> None:
    lark = '%llguidance {}\nstart: "a"'
    assert spec(model, grammar=lark) == GrammarSpec(GrammarKind.LARK, lark)


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "[0-9]+"},
        {"guided_regex": "[0-9]+"},
        {"structured_outputs": {"regex": "[0-9]+"}},
        {"response_format": {"type": "regex", "pattern": "[0-9]+"}},
    ],
    ids=str,
)
def test_regular_expressions(model: Instance, fields: dict[str, object]) -> None:
    assert spec(model, **fields) == GrammarSpec(GrammarKind.REGEX, "[0-9]+")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"grammar": ""},
        {"json_schema": None},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "text"}, "grammar": ""},
    ],
    ids=str,
)
def test_free_text(model: Instance, fields: dict[str, object]) -> None:
    assert spec(model, **fields) is None


def test_a_constraint_replaces_the_default_one(model: Instance) -> None:
    model = replace(model, defaults={"json_schema": SCHEMA, "top_k": 3})
    assert spec(model) == schema_spec(SCHEMA)
    assert spec(model, json_schema={"type": "null"}) == schema_spec({"type": "null"})
    assert spec(model, regex="a") == GrammarSpec(GrammarKind.REGEX, "a")
    for nothing in ({"response_format": {"type": "text"}}, {"grammar": ""}):
        assert spec(model, **nothing) == spec(model)
    assert model.request_params({"grammar": GBNF}).sampling.top_k == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"grammar": 3}, "^grammar is 3: must be a string"),
        ({"regex": ["a"]}, r"^regex is \['a'\]: must be a string"),
        ({"json_schema": 3}, "^json_schema is 3: must be a JSON schema"),
        ({"json_schema": [SCHEMA]}, "^json_schema is .*: must be a JSON schema"),
        ({"json_schema": FORMAT["json_schema"]}, "^json_schema must be the schema itself: the val"),
        ({"json_schema": "{"}, "^json_schema is a string, but not JSON: Expecting property"),
        ({"json_schema": '{"a": NaN}'}, "^json_schema is a .*: NaN is not a JSON number"),
        ({"json_schema": '"text"'}, "^json_schema is 'text': must be a JSON schema"),
        ({"guided_json": "[" * 100_000}, "^guided_json is nested too deeply"),
        ({"guided_choice": []}, r"^guided_choice is \[\]: must be a list of strings"),
        ({"guided_choice": "yes"}, "^guided_choice is 'yes': must be a list of strings"),
        ({"guided_choice": ["yes", 1]}, "^guided_choice is .*: must be a list of strings"),
        ({"guided_whitespace_pattern": " ?"}, '^"guided_whitespace_pattern" is not supported'),
        ({"structural_tag": "{}"}, '^"structural_tag" is not supported'),
        ({"response_format": "json_object"}, "^response_format is .*: must be an object like"),
        ({"response_format": {}}, "^response_format.type is None: must be one of text, json_obj"),
        ({"response_format": {"type": "xml"}}, "^response_format.type is 'xml': must be one of"),
        ({"response_format": {"type": ["text"]}}, "^response_format.type is .*: must be one of"),
        ({"response_format": {"type": "text", "schema": {}}}, "^response_format.schema is unknown"),
        (
            {"response_format": {"type": "json_object", "json_schema": {}}},
            "^response_format.json_schema is unknown: it has schema$",
        ),
        ({"response_format": {"type": "json_schema"}}, "^response_format.schema is missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "^response_format.json_schema.schema is missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": "a"}},
            "^response_format.json_schema is 'a': must be an object like",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
            "^response_format.json_schema.type is unknown: it has schema, strict, name",
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA, "strict": "yes"}},
            "^response_format.strict is 'yes': must be true or false",
        ),
        ({"response_format": {"type": "regex"}}, "^response_format.pattern is None: must be a str"),
        (
            {"response_format": {"type": "regex", "pattern": ""}},
            "^response_format.pattern is empty",
        ),
        ({"regex": ""}, "^regex is empty"),
        ({"guided_grammar": ""}, "^guided_grammar is empty"),
        ({"structured_outputs": {"regex": ""}}, "^structured_outputs.regex is empty"),
        ({"response_format": {"type": "grammar", "grammar": 1}}, "^response_format.grammar is 1"),
        ({"structured_outputs": {}}, "^structured_outputs has no constraint: give one of json, r"),
        ({"structured_outputs": {"json_object": False}}, "^structured_outputs has no constraint"),
        ({"structured_outputs": {"json_object": 1}}, "^structured_outputs.json_object is 1: must"),
        ({"structured_outputs": 3}, "^structured_outputs is 3: must be an object like"),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}},
            "^structured_outputs.whitespace_pattern is not supported",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            "^structured_outputs.disable_any_whitespace is not supported",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "regex": "a"}},
            r"^structured_outputs.json and structured_outputs.regex exclude each other",
        ),
        ({"grammar": GBNF, "json_schema": {}}, "^grammar and json_schema exclude each other: give"),
        ({"guided_json": {}, "guided_choice": ["a"]}, "^guided_json and guided_choice exclude"),
        (
            {"response_format": {"type": "json_object"}, "regex": "a"},
            "^regex and response_format exclude each other",
        ),
    ],
)
def test_invalid_fields(model: Instance, fields: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        spec(model, **fields)


CHOICES = ["yes", "yes!", 'say "no"', "a\\b/c", "x\ny", "caf\u00e9", "{}[]|().*", "\u0001", ""]


@pytest.mark.parametrize("field", ["guided_choice", "choice"])
def test_choices_match_exactly(model: Instance, field: str) -> None:
    given: Any = {field: CHOICES}
    found = spec(model, **(given if field == "guided_choice" else {"structured_outputs": given}))
    assert found is not None
    grammar = Compiler(byte_vocab()).compile(found)
    for text in CHOICES:
        assert accepts(grammar, text), text
        assert not accepts(grammar, text + "?"), text
    assert not accepts(grammar, "ye")
