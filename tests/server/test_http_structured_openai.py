"""Constrained texts through the official `openai` client, as its users write it."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import openai
import pytest
from http_world import RunningServer
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field, WithJsonSchema
from structured_world import PERSON, serving_stories, valid

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me about Tim."}]
HOT: dict[str, Any] = {"model": "any", "temperature": 1.5, "max_tokens": 500}

Short = Annotated[str, Field(max_length=12)]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Pet(BaseModel):
    name: Short
    legs: Annotated[int, Field(ge=0, le=8)]
    color: Color | None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Home(BaseModel):
    """The shapes that pydantic's users write."""

    owner: Short
    pets: Annotated[list[Pet], Field(max_length=2)]
    grid: Annotated[list[Annotated[list[bool], Field(max_length=2)]], Field(max_length=2)]
    mood: Literal["glad", "sad", 3]
    size: float | None
    beast: Cat | Dog


class Record(BaseModel):
    """Formats, which pydantic checks when it parses the text."""

    id: uuid.UUID
    born: datetime.date
    seen: datetime.datetime
    wake: datetime.time


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving_stories() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("kind", [Pet, Home, Record])
def test_parse(client: OpenAI, kind: type[BaseModel]) -> None:
    for seed in range(1 if kind is Record else 2):
        reply = client.chat.completions.parse(messages=ASK, response_format=kind, seed=seed, **HOT)
        (choice,) = reply.choices
        assert isinstance(choice.message.parsed, kind)
        assert choice.finish_reason == "stop"
        assert choice.model_extra == {"constraint": {"complete": True, "loosened": []}}


def test_a_parsed_stream(client: OpenAI) -> None:
    whole = client.chat.completions.parse(messages=ASK, response_format=Home, seed=7, **HOT)
    with client.chat.completions.stream(
        messages=ASK, response_format=Home, seed=7, **HOT
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion().choices[0]
    assert len(deltas) > 1
    assert "".join(deltas) == final.message.content == whole.choices[0].message.content
    assert final.message.parsed == whole.choices[0].message.parsed


def test_a_text_that_is_cut_is_an_error_of_parse(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="any", messages=ASK, response_format=Home, max_tokens=3)


def test_a_dict_as_response_format(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        messages=ASK,
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}},
        **HOT,
    )
    valid(PERSON, reply.choices[0].message.content or "")


def test_a_json_object(client: OpenAI) -> None:
    """Its strings have no limit, so a hot model may not end."""
    for seed in range(2):
        reply = client.chat.completions.create(
            messages=ASK, response_format={"type": "json_object"}, seed=seed, **HOT
        )
        (choice,) = reply.choices
        assert choice.model_extra is not None
        text = choice.message.content or ""
        assert text.startswith("{")
        assert (choice.finish_reason == "stop") == choice.model_extra["constraint"]["complete"]
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(text), dict)


def test_fields_of_vllm(client: OpenAI) -> None:
    for extra in ({"guided_choice": ["up", "down"]}, {"structured_outputs": {"regex": "up|down"}}):
        reply = client.chat.completions.create(messages=ASK, extra_body=extra, **HOT)
        assert reply.choices[0].message.content in ("up", "down")
    text = client.completions.create(prompt="a", extra_body={"guided_json": PERSON}, **HOT)
    valid(PERSON, text.choices[0].text)


def test_a_schema_that_cannot_be_enforced(client: OpenAI) -> None:
    class Tags(BaseModel):
        tags: set[Short]

    with pytest.raises(openai.BadRequestError, match=r"uniqueItems.*\$\.properties\.tags"):
        client.chat.completions.parse(messages=ASK, response_format=Tags, **HOT)


def test_two_clients_at_once(server: RunningServer) -> None:
    async def parse(client: AsyncOpenAI, seed: int) -> str:
        reply = await client.chat.completions.parse(
            messages=ASK, response_format=Home, seed=seed, **HOT
        )
        return reply.choices[0].message.content or ""

    async def both() -> list[str]:
        url = f"{server.url}/v1"
        async with (
            AsyncOpenAI(base_url=url, api_key="a") as one,
            AsyncOpenAI(base_url=url, api_key="b") as two,
        ):
            alone = [await parse(one, seed) for seed in (1, 2)]
            together = await asyncio.gather(parse(one, 1), parse(two, 2))
            assert [*together] == alone
            return alone

    assert len(set(asyncio.run(both()))) == 2


AMOUNT = r"^[0-9]{1,4}\.[0-9]{2}$"


def test_decimals_and_dicts(client: OpenAI) -> None:
    class Prices(BaseModel):
        # Pydantic's own schema of a Decimal allows every string
        total: Annotated[decimal.Decimal, WithJsonSchema({"type": "string", "pattern": AMOUNT})]
        paid: Annotated[dict[Short, bool], Field(max_length=2)]

    reply = client.chat.completions.parse(messages=ASK, response_format=Prices, **HOT)
    parsed = reply.choices[0].message.parsed
    assert isinstance(parsed, Prices) and parsed.total.as_tuple().exponent == -2
