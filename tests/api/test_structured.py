"""Grammars and JSON schemas from Python: schemas of types, values of texts, errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pydantic
import pytest
from api_models import N_CTX, tiny_file
from typing_extensions import TypedDict

import lamella
from lamella import Completion, GrammarError, RequestError
from lamella.schemas import schema_of

COLORS = {"enum": ["red", "blue"]}


class Door(pydantic.BaseModel):
    """Its texts are short: the tiny model writes random letters."""

    state: Literal["on", "off"]
    open: bool = False


class Closed(Door):
    """No text is one: the schema does not have what the validator asks for."""

    @pydantic.field_validator("state")
    @classmethod
    def _refuse(cls, _: str) -> str:
        raise ValueError("refused")


@dataclass
class Pair:
    left: bool
    right: bool


class Keys(TypedDict):
    only: Literal["x"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lamella.Model]:
    with lamella.load(tiny_file(tmp_path_factory), n_ctx=N_CTX) as model:
        yield model


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"regex": "[a-f]{9}"}, "[a-f]{9}"),
        ({"grammar": 'root ::= [xy]+ "."'}, "[xy]+\\."),
        ({"grammar": '%llguidance {}\nstart: /[0-9]+/ "."'}, "[0-9]+\\."),
        ({"json_schema": COLORS}, '"(red|blue)"'),
    ],
)
def test_all_methods_follow_a_grammar(
    model: lamella.Model, options: dict[str, Any], pattern: str
) -> None:
    async def twins() -> list[Completion]:
        own = {"temperature": 1.5, "seed": 4, **options}
        streams = (model.acomplete_stream("a", **own), model.achat_stream("a", **own))
        return [
            await model.acomplete("a", **own),
            await model.achat("a", **own),
            *[await stream.result() for stream in streams],
        ]

    own = {"temperature": 1.5, "seed": 4, **options}
    streams = (model.complete_stream("a", **own), model.chat_stream("a", **own))
    found = [
        model.complete("a", **own),
        model.chat("a", **own),
        *[stream.result() for stream in streams],
    ]
    for whole in found:
        assert re.fullmatch(pattern, whole.text)
        assert (whole.complete, whole.finish_reason) == (True, "stop")
    assert [whole.text for whole in asyncio.run(twins())] == [whole.text for whole in found]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (Door, Door),
        (Pair, Pair),
        (Keys, dict),
        (list[Literal[1, 2]], list),
        (pydantic.TypeAdapter(Literal["a", "b"]), str),
        (COLORS, str),
        (json.dumps(COLORS), str),
    ],
)
def test_the_value_has_the_type_of_the_schema(model: lamella.Model, given: Any, kind: type) -> None:
    whole = model.complete("a", json_schema=given, temperature=1.2, seed=1, max_tokens=200)
    assert whole.complete
    assert type(whole.parsed) is kind
    assert pydantic.TypeAdapter(Any).dump_python(whole.parsed, exclude_unset=True) == json.loads(
        whole.text
    )
    assert model.complete_stream("a", json_schema=given, seed=2).result().parsed is not None


def test_there_is_no_value_of_a_text_that_is_not_complete(model: lamella.Model) -> None:
    short = model.complete("a", json_schema=COLORS, max_tokens=2)
    assert (short.complete, short.finish_reason) == (False, "length")
    with pytest.raises(RequestError, match="not complete: it ended by a limit"):
        short.parsed  # noqa: B018
    stopped = model.complete("a", json_schema=COLORS, stop="e")
    assert (stopped.complete, stopped.stop) == (False, "e")
    with pytest.raises(RequestError, match="not complete: it ended by the stop text 'e'"):
        stopped.parsed  # noqa: B018
    for regex, complete in ((None, None), ("[0-9]", True)):
        whole = model.complete("a", max_tokens=2, regex=regex)
        assert whole.complete is complete
        with pytest.raises(RequestError, match="parsed: the text has no json_schema"):
            whole.parsed  # noqa: B018


def test_a_validator_may_refuse_a_value(model: lamella.Model) -> None:
    whole = model.complete("a", json_schema=Closed, seed=1)
    assert whole.complete and json.loads(whole.text)["state"] in ("on", "off")
    with pytest.raises(pydantic.ValidationError, match="refused"):
        whole.parsed  # noqa: B018


def test_objects_of_types_are_closed() -> None:
    class Open(pydantic.BaseModel, extra="allow"):
        inner: Door
        properties: int

    schema: Any = schema_of(Open)
    assert schema["additionalProperties"] is True
    assert schema["$defs"]["Door"]["additionalProperties"] is False
    assert schema["properties"]["properties"] == {"title": "Properties", "type": "integer"}
    assert schema_of({"type": "object", "properties": {}}) == {"type": "object", "properties": {}}


def test_loosened_keywords_are_named(model: lamella.Model) -> None:
    tags = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    schema = {"type": "object", "properties": {"tags": tags}}
    with pytest.raises(GrammarError, match=r"`uniqueItems` at `\$.properties.tags`"):
        model.complete("a", json_schema=schema)
    loose = model.complete("a", json_schema=schema, schema_strict=False, max_tokens=3)
    assert [each[:2] for each in loose.loosened] == [("$.properties.tags", "uniqueItems")]
    assert model.complete("a", json_schema=COLORS).loosened == ()


class Unknown:
    pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"json_schema": "{"}, "json_schema is not JSON: Expecting property name"),
        ({"json_schema": "[1]"}, "json_schema is [1]: must be a JSON schema"),
        ({"json_schema": Unknown}, "is no schema and no type for pydantic: Unable to generate"),
        ({"json_schema": 5}, "json_schema: 5 is no schema and no type"),
        ({"json_schema": {"enum": {1}}}, "json_schema: Object of type set is not JSON"),
        ({"json_schema": {}, "regex": "a"}, "json_schema: cannot be combined with regex"),
        ({"response_format": {}}, "response_format is not an option: give json_schema"),
    ],
)
def test_wrong_options(model: lamella.Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as refused:
        model.complete("a", **options)
    assert message in str(refused.value)


def test_wrong_grammars(model: lamella.Model) -> None:
    for options in ({"regex": "(a"}, {"json_schema": {"type": "objekt"}}, {"grammar": "root = a"}):
        with pytest.raises(GrammarError):
            model.chat("a", **options)
