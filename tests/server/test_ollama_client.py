"""The official `ollama` client package against the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import ollama
import pydantic
import pytest
from anthropic_world import messages_server
from http_world import RunningServer

TEXT = "Hello there, ☃."
SAME: dict[str, Any] = {"model": "any"}


def read(path: str) -> str:
    """Read a file.

    Args:
        path: its path
    """
    return f"read {path}"


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with messages_server(tmp_path_factory.mktemp("model"), api_keys=("secret",)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[ollama.Client]:
    headers = {"Authorization": "Bearer secret"}
    with closing(ollama.Client(host=server.url, headers=headers)) as client:
        yield client


def asks(script: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"play {script}"}]


def test_a_chat(client: ollama.Client) -> None:
    found = client.chat(messages=asks("text"), **SAME)
    assert (found.message.content, found.done, found.done_reason) == (TEXT, True, "stop")
    assert found.model == "any"
    assert found.eval_count and found.prompt_eval_count and found.total_duration
    assert found.total_duration >= (found.eval_duration or 0) > 0
    assert found.created_at and found.created_at.endswith("Z")


def test_a_stream(client: ollama.Client) -> None:
    parts = list(client.chat(messages=asks("text"), stream=True, **SAME))
    assert "".join(part.message.content or "" for part in parts) == TEXT
    assert len(parts) > 3
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].done_reason == "stop" and parts[-1].eval_count


@pytest.mark.parametrize("think", [None, True, "high"])
def test_thinking_is_apart(client: ollama.Client, think: Any) -> None:
    found = client.chat(messages=asks("thought"), think=think, **SAME)
    assert (found.message.thinking, found.message.content) == ("Let me see.", "It is 4.")
    parts = list(client.chat(messages=asks("thought"), think=think, stream=True, **SAME))
    assert "".join(part.message.thinking or "" for part in parts) == "Let me see."
    assert "".join(part.message.content or "" for part in parts) == "It is 4."


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_loop_with_tools(client: ollama.Client, is_streamed: bool) -> None:
    messages: list[Any] = asks("call")
    if is_streamed:
        parts = list(client.chat(messages=messages, tools=[read], stream=True, **SAME))
        (call,) = [call for part in parts for call in part.message.tool_calls or ()]
    else:
        found = client.chat(messages=messages, tools=[read], **SAME)
        (call,) = list(found.message.tool_calls or ())
        assert found.message.content == "I look."
    assert (call.function.name, call.function.arguments) == ("read", {"path": "a.txt"})
    messages += [
        {"role": "assistant", "content": "I look.", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_name": "read", "content": read("a.txt")},
        *asks("text"),
    ]
    assert client.chat(messages=messages, tools=[read], **SAME).message.content == TEXT


def test_two_calls_come_as_two_lines(client: ollama.Client) -> None:
    def now() -> str:
        """The time."""
        return "noon"

    parts = list(client.chat(messages=asks("calls"), tools=[read, now], stream=True, **SAME))
    calls = [[call.function.name for call in part.message.tool_calls or ()] for part in parts]
    assert [names for names in calls if names] == [["read"], ["now"]]


def test_a_schema(client: ollama.Client) -> None:
    schema = Person.model_json_schema()
    found = client.chat(messages=asks("person"), format=schema, **SAME)
    assert Person.model_validate_json(found.message.content or "") == Person(name="Ann", age=3)
    json = client.generate(prompt="play person", format="json", **SAME)
    assert Person.model_validate_json(json.response).name == "Ann"


def test_a_completion(client: ollama.Client) -> None:
    found = client.generate(prompt="play thought", system="Be brief.", **SAME)
    assert (found.response, found.thinking, found.done) == ("It is 4.", "Let me see.", True)
    assert found.context
    again = client.generate(prompt="play text", context=found.context, **SAME)
    assert again.response == TEXT
    assert list(again.context or ())[: len(found.context)] == list(found.context)
    parts = list(client.generate(prompt="play text", stream=True, **SAME))
    assert "".join(part.response or "" for part in parts) == TEXT


def test_options_and_limits(client: ollama.Client) -> None:
    options = {"num_predict": 2, "num_ctx": 8192, "temperature": 0, "seed": 5, "top_k": 1}
    found = client.chat(messages=asks("text"), options=options, keep_alive="5m", **SAME)
    assert (found.eval_count, found.done_reason) == (2, "length")
    found = client.chat(messages=asks("text"), options={"stop": ["the"]}, **SAME)
    assert (found.message.content, found.done_reason) == ("Hello ", "stop")


def test_log_probabilities(client: ollama.Client) -> None:
    found = client.chat(messages=asks("text"), logprobs=True, top_logprobs=2, **SAME)
    assert found.logprobs and found.logprobs[0].logprob <= 0
    assert len(found.logprobs[0].top_logprobs or ()) == 2
    parts = client.chat(messages=asks("text"), logprobs=True, stream=True, **SAME)
    texts = [one.token for part in parts for one in part.logprobs or ()]
    assert "".join(texts[:-1]) == "".join(one.token for one in found.logprobs[:-1])


def test_lists(client: ollama.Client, server: RunningServer) -> None:
    alias = server.model.alias
    first = client.list().models[0]
    assert first.model == alias and first.size and first.details and first.digest
    assert (first.details.family, first.details.format) == ("llama", "gguf")
    (loaded,) = client.ps().models
    assert loaded.model == alias and loaded.context_length == 4096 and loaded.size
    shown = client.show(f"{alias}:latest")
    assert shown.modelinfo and shown.modelinfo["general.architecture"] == "llama"
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert "<|im_start|>" in (shown.template or "")


def test_errors(client: ollama.Client, server: RunningServer) -> None:
    with pytest.raises(ollama.ResponseError, match="temperature") as refused:
        client.chat(messages=asks("text"), options={"temperature": "hot"}, **SAME)
    assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="other/model") as missing:
        client.chat(model="other/model:Q4_K_M", messages=asks("text"))
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.show("other")
    with pytest.raises(ollama.ResponseError, match="not supported yet") as images:
        client.generate(prompt="play text", images=["aGVsbG8="], **SAME)
    assert images.value.status_code == 400
    with (
        closing(ollama.Client(host=server.url)) as stranger,
        pytest.raises(ollama.ResponseError, match="Invalid API Key"),
    ):
        stranger.chat(messages=asks("text"), **SAME)
    with pytest.raises(ollama.ResponseError, match="making models") as unsupported:
        client.copy("any", "other")
    assert unsupported.value.status_code == 501


def test_an_asynchronous_client(server: RunningServer) -> None:
    async def main() -> str:
        headers = {"Authorization": "Bearer secret"}
        client = ollama.AsyncClient(host=server.url, headers=headers)
        stream = await client.chat(messages=asks("text"), stream=True, **SAME)
        text = "".join([part.message.content or "" async for part in stream])
        await client.close()  # type: ignore[no-untyped-call]
        return text

    assert asyncio.run(main()) == TEXT
