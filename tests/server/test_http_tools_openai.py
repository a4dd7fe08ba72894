"""Tools and reasoning through the official `openai` client, as its users write it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from http_world import RunningServer
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel
from tools_world import ADD, WEATHER, call, serving

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How warm is it in Kiel?"}]
TOOLS: list[ChatCompletionToolParam] = [WEATHER, ADD]
KIEL = call("get_weather", '{"city": "Kiel"}')
BERGEN = call("get_weather", '{"city": "Bergen"}')


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str


class Report(BaseModel):
    city: str
    degrees: int


def play(prompt: str) -> str:
    """An answer to the last message."""
    question = prompt.rpartition("<|im_start|>user")[2]
    if "<|im_start|>tool" in question:
        result = question.rpartition("<|im_start|>tool")[2].partition("<|im_end|>")[0]
        return f"It is {result.strip()} degrees."
    if "both" in question:
        return f"<think>\nBoth.\n</think>\n\nI ask.\n{KIEL}\n{BERGEN}"
    if "pydantic" in question:
        return f"<think>\nNow.\n</think>\n\n{call('GetWeather', json.dumps({'city': 'Kiel'}))}"
    if "report" in question:
        return '<think>\nIn JSON.\n</think>\n\n{"city": "Kiel", "degrees": 7}'
    return f"<think>\nI need a tool.\n</think>\n\n{KIEL}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(tmp_path_factory.mktemp("model"), play) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def user(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def test_two_turns(client: OpenAI) -> None:
    """The loop of an agent."""
    messages: list[Any] = [*ASK]
    reply = client.chat.completions.create(model="any", messages=messages, tools=TOOLS)
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"].strip() == "I need a tool."
    (tool_call,) = choice.message.tool_calls
    assert tool_call.type == "function"
    assert tool_call.function.name == "get_weather"
    assert json.loads(tool_call.function.arguments) == {"city": "Kiel"}
    messages.append(choice.message)
    messages.append({"role": "tool", "tool_call_id": tool_call.id, "content": "7"})
    reply = client.chat.completions.create(model="any", messages=messages, tools=TOOLS)
    assert reply.choices[0].message.content == "It is 7 degrees."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.tool_calls is None


def test_a_stream_of_parallel_calls(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="any", messages=user("both"), tools=TOOLS)
    with client.chat.completions.stream(model="any", messages=user("both"), tools=TOOLS) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    pieces = [each for each in events if each.type == "tool_calls.function.arguments.delta"]
    assert len(pieces) > 2
    done = [each for each in events if each.type == "tool_calls.function.arguments.done"]
    assert [json.loads(each.arguments) for each in done] == [{"city": "Kiel"}, {"city": "Bergen"}]
    assert final.finish_reason == "tool_calls"
    assert final.message.content == whole.choices[0].message.content
    assert final.message.tool_calls is not None
    assert whole.choices[0].message.tool_calls is not None
    for streamed, found in zip(
        final.message.tool_calls, whole.choices[0].message.tool_calls, strict=True
    ):
        assert found.type == "function"
        assert streamed.function.arguments == found.function.arguments
        assert streamed.function.name == found.function.name
        assert streamed.id != found.id  # of another answer


def test_reasoning_streams(client: OpenAI) -> None:
    chunks = client.chat.completions.create(
        model="any", messages=ASK, tools=TOOLS, stream=True, stream_options={"include_usage": True}
    )
    *parts, last = chunks
    deltas: list[Any] = [part.choices[0].delta for part in parts]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning.strip() == "I need a tool."
    assert last.usage is not None
    assert last.usage.completion_tokens_details is not None
    assert last.usage.completion_tokens_details.reasoning_tokens


def test_a_pydantic_tool(client: OpenAI) -> None:
    reply = client.chat.completions.parse(
        model="any", messages=user("pydantic"), tools=[openai.pydantic_function_tool(GetWeather)]
    )
    assert reply.choices[0].message.tool_calls is not None
    (tool_call,) = reply.choices[0].message.tool_calls
    assert tool_call.function.parsed_arguments == GetWeather(city="Kiel")


def test_a_pydantic_response_beside_tools(client: OpenAI) -> None:
    strict = [openai.pydantic_function_tool(GetWeather)]
    for tools in (openai.omit, strict):
        reply = client.chat.completions.parse(
            model="any", messages=user("report"), response_format=Report, tools=tools
        )
        assert reply.choices[0].message.parsed == Report(city="Kiel", degrees=7)
        assert reply.choices[0].finish_reason == "stop"


def test_a_named_tool(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="any",
        messages=ASK,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        parallel_tool_calls=False,
    )
    assert reply.choices[0].message.tool_calls is not None
    with pytest.raises(openai.BadRequestError, match="must be one of get_weather, add"):
        client.chat.completions.create(
            model="any",
            messages=ASK,
            tools=TOOLS,
            tool_choice={"type": "function", "function": {"name": "rain"}},
        )


def test_coroutines(server: RunningServer) -> None:
    async def names(client: AsyncOpenAI, text: str) -> list[str]:
        reply = await client.chat.completions.create(model="any", messages=user(text), tools=TOOLS)
        calls = reply.choices[0].message.tool_calls or []
        return [each.function.arguments for each in calls if each.type == "function"]

    async def stream(client: AsyncOpenAI) -> list[str]:
        async with client.chat.completions.stream(
            model="any", messages=user("both"), tools=TOOLS
        ) as stream:
            final = await stream.get_final_completion()
        calls = final.choices[0].message.tool_calls or []
        return [each.function.arguments for each in calls]

    async def main() -> list[list[str]]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            texts = names(client, "one"), names(client, "both"), stream(client)
            return list(await asyncio.gather(*texts))

    kiel, bergen = '{"city": "Kiel"}', '{"city": "Bergen"}'
    assert asyncio.run(main()) == [[kiel], [kiel, bergen], [kiel, bergen]]
