"""The fields of requests that constrain a text: grammars, regular expressions and JSON schemas.

They are those of llama-server (`grammar`, `json_schema`), OpenAI (`response_format`; also with the
types of Together and Fireworks), vLLM (`structured_outputs`, `guided_...`) and SGLang (`regex`,
`ebnf`). All become options of `GrammarParams`. A part of a field that Lamella does not support is
an error, never left out. Knows no vocabulary, and not if a grammar is valid.
Tested by tests/server/test_http_constraints.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ..base.errors import RequestError
from ..base.json_depth import check_depth
from ..base.nesting import limited_nesting
from ..base.options import refused
from ..model.guide.spec import LARK_MARK
from .long_json import N_DEPTH_MAX, STRICT, parse_json

Options = dict[str, Any]
Reader = Callable[[str, Any], Options]  # of a field's name and value

NAMED_SCHEMA: Final = ("schema", "strict", "name", "description")  # OpenAI's object
# of vLLM's structured_outputs, without effect here
WITHOUT_EFFECT: Final = ("disable_fallback", "_backend", "_backend_was_auto")


SCHEMA_PATH: Final = "schema_path"  # beside a schema in the options: where the body has it


def constraint_of(body: Mapping[str, Any]) -> tuple[Options, str]:
    """Return the options of `GrammarParams` that a body sets, and where it has their schema.

    There are no options if the body has no such field.

    Raises:
        RequestError: a field is invalid, or several fields constrain the text.
    """
    given = {
        name: read(name, body[name]) for name, read in FIELDS.items() if body.get(name) is not None
    }
    options = _only_one(given)
    path = options.get(SCHEMA_PATH, "json_schema")
    return {key: options[key] for key in options if key != SCHEMA_PATH}, path


def _only_one(given: Mapping[str, Options]) -> Options:
    """The options of the only field that constrains the text. Others have none."""
    names = [name for name, options in given.items() if options]
    if len(names) > 1:
        raise RequestError(f"{' and '.join(names)} exclude each other: give one of them")
    return given[names[0]] if names else {}


def _grammar(name: str, value: Any) -> Options:
    return _text("grammar", name, value)


def _regex(name: str, value: Any) -> Options:
    return _text("regex", name, value)


def _text(option: str, name: str, value: Any) -> Options:
    """A grammar as a text. An empty `grammar` is none, as in llama-server; others are mistakes."""
    if not isinstance(value, str):
        raise refused(name, value, "a string")
    if not value and name != "grammar":
        raise RequestError(f"{name} is empty")
    return {option: value} if value else {}


def _schema(name: str, value: Any) -> Options:
    """A JSON schema; as a JSON text in SGLang's and some of llama.cpp's clients."""
    if isinstance(value, str):
        try:
            with limited_nesting(name):
                value = parse_json(value, STRICT)
        except ValueError as e:
            raise RequestError(f"{name} is a string, but not JSON: {e}") from None
        check_depth(name, value, N_DEPTH_MAX)
    if not isinstance(value, dict | bool):
        raise refused(name, value, 'a JSON schema, as an object like {"type": "object"}')
    if isinstance(value, dict) and "schema" in value and not value.keys() - set(NAMED_SCHEMA):
        # as a schema, it would allow any value
        raise RequestError(f'{name} must be the schema itself: the value of its "schema"')
    return {"json_schema": value, SCHEMA_PATH: name}


def _choice(name: str, value: Any) -> Options:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise refused(name, value, "a list of strings")
    # Lark's strings are JSON's
    return {
        "grammar": f"{LARK_MARK} {{}}\nstart: CHOICE\nCHOICE: {' | '.join(map(_quoted, value))}"
    }


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json_object(name: str, value: Any) -> Options:
    if not isinstance(value, bool):
        raise refused(name, value, "true or false")
    return _schema(name, {}) if value else {}


def _structured_outputs(name: str, value: Any) -> Options:
    given = _object(name, value, '{"json": {"type": "object"}}')
    for key in given.keys() - STRUCTURED.keys() - set(WITHOUT_EFFECT):
        if given[key] is not False:
            raise RequestError(f"{name}.{key} is not supported: {name} has {', '.join(STRUCTURED)}")
    found = {
        f"{name}.{key}": read(f"{name}.{key}", given[key])
        for key, read in STRUCTURED.items()
        if key in given
    }
    options = _only_one(found)
    if not options:
        raise RequestError(f"{name} has no constraint: give one of {', '.join(STRUCTURED)}")
    return options


def _response_format(name: str, value: Any) -> Options:
    given = _object(name, value, '{"type": "json_object"}')
    kind = given.pop("type", None)
    if not isinstance(kind, str) or kind not in FORMATS:
        raise refused(f"{name}.type", kind, f"one of {', '.join(FORMATS)}")
    return FORMATS[kind](name, given)


def _text_format(name: str, given: Any) -> Options:
    _take(name, given)
    return {}


def _json_object_format(name: str, given: Any) -> Options:
    (schema,) = _take(name, given, "schema")
    return _schema(f"{name}.schema", {} if schema is None else schema)


def _json_schema_format(name: str, given: Any) -> Options:
    """OpenAI's nested object; or its fields beside `type`, as in llama-server's documentation."""
    if "json_schema" in given:
        (nested,) = _take(name, given, "json_schema")
        name = f"{name}.json_schema"
        given = _object(name, nested, '{"name": "answer", "schema": {"type": "object"}}')
    schema, strict, *_ = _take(name, given, *NAMED_SCHEMA)
    if schema is None:
        raise RequestError(f"{name}.schema is missing")
    if not isinstance(strict, bool | None):
        raise refused(f"{name}.strict", strict, "true or false")
    found = _schema(f"{name}.schema", schema)
    return found if strict is None else {**found, "schema_strict": strict}


def _text_in(key: str, read: Reader, name: str, given: Any) -> Options:
    (text,) = _take(name, given, key)
    return read(f"{name}.{key}", text)


def _take(name: str, given: Mapping[str, Any], *keys: str) -> list[Any]:
    """The values of these keys, None if absent. Raises RequestError if there are others."""
    unknown = next((key for key in given if key not in keys), None)
    if unknown is not None:
        known = f"it has {', '.join(keys)}" if keys else "it has no further fields"
        raise RequestError(f"{name}.{unknown:.80} is unknown: {known}")
    return [given.get(key) for key in keys]


def _object(name: str, value: Any, example: str) -> Options:
    """The object without its nulls."""
    if not isinstance(value, dict):
        raise refused(name, value, f"an object like {example}")
    return {key: item for key, item in value.items() if item is not None}


FIELDS: Final[Mapping[str, Reader]] = {
    "grammar": _grammar,
    "json_schema": _schema,
    "regex": _regex,
    "response_format": _response_format,
    "ebnf": _grammar,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "structured_outputs": _structured_outputs,
}
STRUCTURED: Final[Mapping[str, Reader]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
}
FORMATS: Final[Mapping[str, Reader]] = {
    "text": _text_format,
    "json_object": _json_object_format,
    "json_schema": _json_schema_format,
    "regex": partial(_text_in, "pattern", _regex),
    "grammar": partial(_text_in, "grammar", _grammar),
}
