"""The official `openai` client package against the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from fake_context import WAIT_S
from http_world import RunningServer, running
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from lamella.server.config import ServerConfig
from lamella.server.request_record import RequestRecord

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(config=ServerConfig(port=0, api_keys=("secret",))) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
        yield client


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]


def test_completion(client: OpenAI) -> None:
    reply = client.completions.create(model="any", prompt="abc", **GREEDY)
    (choice,) = reply.choices
    assert choice.text
    assert choice.finish_reason == "length"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (4, 8)
    assert reply.usage.prompt_tokens_details is not None
    # other tests may share the prefix
    assert reply.usage.prompt_tokens_details.cached_tokens in range(4)
    assert reply.system_fingerprint is not None
    assert reply.object == "text_completion"


def test_completion_of_several_prompts(client: OpenAI) -> None:
    reply = client.completions.create(model="any", prompt=["a", "b"], n=2, max_tokens=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]


def test_completion_logprobs_can_be_parsed(client: OpenAI) -> None:
    reply = client.completions.create(model="any", prompt="a", logprobs=2, **GREEDY)
    logprobs: Any = reply.choices[0].logprobs
    assert len(logprobs.content) == 8


def test_completion_stream(client: OpenAI) -> None:
    whole = client.completions.create(model="any", prompt="abc", **GREEDY).choices[0].text
    chunks = list(client.completions.create(model="any", prompt="abc", stream=True, **GREEDY))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="any", messages=HI, user="me", metadata={"a": "b"}, store=False, **GREEDY
    )
    (choice,) = reply.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 8


def test_chat_stop_and_seed(client: OpenAI) -> None:
    def text(**more: Any) -> str:
        reply = client.chat.completions.create(
            model="any", messages=HI, max_tokens=20, extra_body={"ignore_eos": True}, **more
        )
        return reply.choices[0].message.content or ""

    whole = text(seed=1)
    assert text(seed=1) == whole != text(seed=2)
    assert text(seed=1, stop=whole[4:6]) == whole[: whole.index(whole[4:6])]


def test_chat_stream_with_usage(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="any", messages=HI, **GREEDY)
    chunks = list(
        client.chat.completions.create(
            model="any",
            messages=HI,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    *parts, usage = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in parts)
    assert text == whole.choices[0].message.content
    assert parts[-1].choices[0].finish_reason == "length"
    assert (usage.choices, usage.usage) == ([], whole.usage)


def test_chat_logprobs(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="any", messages=HI, logprobs=True, top_logprobs=3, **GREEDY
    )
    assert reply.choices[0].logprobs is not None
    content = reply.choices[0].logprobs.content
    assert content is not None
    assert len(content) == 8
    for at in content:
        assert at.bytes == list(bytes(at.bytes or []))
        assert len(at.top_logprobs) == 3
        assert at.top_logprobs[0].logprob >= at.top_logprobs[1].logprob
        assert at.top_logprobs[0].token == at.token


def test_chat_content_in_parts(client: OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    ]
    plain = client.chat.completions.create(model="any", messages=HI, **GREEDY)
    parts = client.chat.completions.create(model="any", messages=messages, **GREEDY)
    assert parts.choices[0].message == plain.choices[0].message


def test_error_classes(client: OpenAI, server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens is -5: must be") as wrong:
        client.completions.create(model="any", prompt="a", max_tokens=-5)
    assert wrong.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="any", prompt="a" * 600)
    assert isinstance(too_long.value.body, dict)
    assert too_long.value.body["n_prompt_tokens"] == 601
    with pytest.raises(openai.InternalServerError, match="lamella serve MODEL --emb") as missing:
        client.embeddings.create(model="any", input="a")
    assert missing.value.status_code == 501
    with pytest.raises(openai.BadRequestError, match='"tool_choice" is "required": must have'):
        client.chat.completions.create(model="any", messages=HI, tool_choice="required")
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_the_client_does_not_try_an_unsupported_request_again(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level("INFO", "lamella.server"),
        OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=2) as patient,
    ):
        with pytest.raises(openai.InternalServerError):
            patient.embeddings.create(model="any", input="a")
        with pytest.raises(openai.BadRequestError):
            patient.chat.completions.create(model="any", messages=HI, tool_choice="required")
        until = time.monotonic() + WAIT_S
        while len(found := requests(caplog)) < 2 and time.monotonic() < until:
            time.sleep(0.005)  # the log's line may come after the reply
    assert found == [501, 400]


def requests(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The statuses of the POST requests in the log: a GET of another test may come late."""
    records = [r.msg for r in caplog.records if isinstance(r.msg, RequestRecord)]
    return [record.status for record in records if record.method == "POST"]


def test_closing_a_stream_early(client: OpenAI, server: RunningServer) -> None:
    with client.completions.create(
        model="any", prompt="a", stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        assert next(iter(stream)).choices
    assert client.completions.create(model="any", prompt="a", max_tokens=1).choices


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": "abc"}), ("/v1/chat/completions", {"messages": HI})],
)
def test_verbose(path: str, body: dict[str, Any]) -> None:
    asked = {**body, "temperature": 0, "max_tokens": 8, "n": 2, "seed": 4}
    with running() as server:
        whole = server.ok(path, **asked, verbose=True)
        native = whole["__verbose"]
        first = whole["choices"][0]
        assert native["content"] == (first.get("text") or first["message"]["content"])
        assert native["prompt"].startswith("<s>")
        assert (native["generation_settings"]["n_predict"], native["index"]) == (8, 0)
        events = server.post(path, {**asked, "verbose": True, "stream": True}).events
        ends = [each["__verbose"] for each in events[:-1] if "__verbose" in each]
        assert sorted(end["index"] for end in ends) == [0, 1]
        assert {end["content"] for end in ends} == {""}
        assert "__verbose" not in server.ok(path, **asked, verbose=False)
        assert '"verbose"' in server.post(path, {**asked, "verbose": 1}).error["message"]
