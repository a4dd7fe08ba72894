"""The official `anthropic` client package against the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pydantic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import MessageParam, ToolParam
from anthropic_world import CLOCK, READ, messages_server
from http_world import RunningServer

TEXT = "Hello there, ☃."
TOOLS: list[ToolParam] = [READ, CLOCK]
SAME: dict[str, Any] = {"model": "claude-any", "max_tokens": 300}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with messages_server(tmp_path_factory.mktemp("model"), api_keys=("secret",)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="secret", max_retries=0) as client:
        yield client


def asks(script: str) -> list[MessageParam]:
    return [{"role": "user", "content": f"play {script}"}]


def test_a_message(client: Anthropic) -> None:
    message = client.messages.create(messages=asks("text"), system="Be brief.", **SAME)
    (block,) = message.content
    assert (block.type == "text" and block.text, message.stop_reason) == (TEXT, "end_turn")
    assert message._request_id is not None
    assert message._request_id.startswith("req_")


def test_a_stream(client: Anthropic) -> None:
    with client.messages.stream(messages=asks("text"), **SAME) as stream:
        assert "".join(stream.text_stream) == TEXT
        message = stream.get_final_message()
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 3
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 5


def test_thinking_is_streamed(client: Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    with client.messages.stream(messages=asks("thought"), thinking=thinking, **SAME) as stream:
        thoughts = [event.thinking for event in stream if event.type == "thinking"]
        message = stream.get_final_message()
    assert "".join(thoughts) == "Let me see."
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].type == "thinking" and message.content[0].signature


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_loop_with_tools(client: Anthropic, is_streamed: bool) -> None:
    messages = asks("calls")
    if is_streamed:
        with client.messages.stream(messages=messages, tools=TOOLS, **SAME) as stream:
            message: Any = stream.get_final_message()
    else:
        message = client.messages.create(messages=messages, tools=TOOLS, **SAME)
    assert message.stop_reason == "tool_use"
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [("read", {"path": "a.txt"}), ("now", {})]
    results: Any = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "play text"} for call in calls
    ]
    messages += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    answer: Any = client.messages.create(messages=messages, tools=TOOLS, **SAME)
    assert answer.content[0].text == TEXT


def test_the_tool_runner_of_the_package(client: Anthropic) -> None:
    read: list[str] = []

    @anthropic.beta_tool  # type: ignore[untyped-decorator]
    def read_file(path: str) -> str:
        """Read a file."""
        read.append(path)
        return "play text"

    tool: Any = read_file
    tool.name = "read"
    runner = client.beta.messages.tool_runner(messages=asks("call"), tools=[tool], **SAME)
    last: Any = runner.until_done()
    assert (read, last.content[0].text) == (["a.txt"], TEXT)


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_a_pydantic_model(client: Anthropic) -> None:
    parsed = client.messages.parse(messages=asks("person"), output_format=Person, **SAME)
    assert parsed.parsed_output == Person(name="Ann", age=3)


def test_counting(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="any", messages=asks("text"), tools=TOOLS)
    assert counted.input_tokens > 50


def test_errors(client: Anthropic, server: RunningServer) -> None:
    image: Any = {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(messages=[{"role": "user", "content": [image]}], **SAME)
    assert "messages[0].content[0].type" in str(caught.value)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id is not None
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
        client.messages.create(messages=[{"role": "user", "content": "no " * 9000}], **SAME)
    other = client.with_options(api_key="wrong")
    with pytest.raises(anthropic.AuthenticationError):
        other.messages.create(messages=asks("text"), **SAME)


def test_coroutines(server: RunningServer) -> None:
    async def main() -> list[str]:
        async with AsyncAnthropic(base_url=server.url, auth_token="secret", api_key=None) as client:

            async def text() -> str:
                message: Any = await client.messages.create(messages=asks("text"), **SAME)
                return str(message.content[0].text)

            async def stream() -> str:
                async with client.messages.stream(messages=asks("text"), **SAME) as stream:
                    return "".join([text async for text in stream.text_stream])

            return list(await asyncio.gather(text(), stream(), text()))

    assert asyncio.run(main()) == [TEXT] * 3
