"""Client programs that use the packages of OpenAI and of Anthropic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import anthropic
import openai
from compat_client import KEY, SCHEMA, TIMEOUT, WEATHER, Seen, Target
from compat_shapes import order_of

HI: Final[list[Any]] = [{"role": "user", "content": "Tell me of a cat"}]
CALLED: Final[list[Any]] = [
    *HI,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"town": "A"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]
FORMAT: Final[Any] = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
TOOLS: Final[list[Any]] = [WEATHER]


def _stream(seen: Seen, step: str, found: Iterable[Any]) -> None:
    """Note the events of a stream of a package."""
    items = [each.model_dump(mode="json", exclude_unset=True) for each in found]
    seen.add(
        step,
        {
            "order": {"type": order_of(items)},
            "pieces": items[:-1],
            "last": items[-1],
        },
    )


def _note(seen: Seen, step: str, call: Callable[[], Any]) -> Any:
    """Note what a call returns, or the class of its error."""
    try:
        found = call()
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        seen.add(step, {"error": {"type": type(error).__name__}, "body": error.body})
        return None
    seen.add(step, found.model_dump(mode="json", exclude_unset=True))
    return found


def openai_package(target: Target, seen: Seen) -> None:
    """Programs of the `openai` package."""
    with openai.OpenAI(
        base_url=f"{target.text}/v1", api_key="any", max_retries=0, timeout=TIMEOUT
    ) as client:
        seen.add("models", [each.model_dump(exclude_unset=True) for each in client.models.list()])
        _chats(client, seen)
        _chat_streams(client, seen)
        _completions(client, seen)
        _responses(client, seen)


def _chats(client: openai.OpenAI, seen: Seen) -> None:
    def chat(step: str, **fields: Any) -> Any:
        given: dict[str, Any] = {"messages": HI, "max_tokens": 6, "temperature": 0} | fields
        create: Any = client.chat.completions.create
        return _note(seen, step, lambda: create(model="any", **given))

    chat("chat")
    chat("chat with logprobs", logprobs=True, top_logprobs=2)
    chat("logprobs alone", logprobs=True)
    chat("two choices", n=2, temperature=1)
    chat("a stop string", stop=["a", "e"], max_tokens=40)
    chat("a system prompt", messages=[{"role": "system", "content": "Be kind"}, *HI])
    chat("parts", messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    chat("json mode", response_format={"type": "json_object"}, max_tokens=30)
    chat("a schema", response_format=FORMAT, max_tokens=60)
    chat("a tool that must be called", tools=TOOLS, tool_choice="required", max_tokens=120)
    chat("tools that may be called", tools=TOOLS, parallel_tool_calls=True)
    chat("tools that are not called", tools=TOOLS, tool_choice="none")
    chat("the answer of a tool", messages=CALLED, tools=TOOLS)
    chat("a last message to continue", messages=[*HI, {"role": "assistant", "content": "A cat"}])
    chat("reasoning effort", reasoning_effort="low")
    chat("fields of llama-server", extra_body={"top_k": 5, "min_p": 0.1, "return_tokens": True})
    chat("max_completion_tokens", max_tokens=None, extra_body={"max_completion_tokens": 3})
    chat("a wrong role", messages=[{"role": "stranger", "content": "hi"}])
    chat("no messages", messages=[])
    chat("far too long", messages=[{"role": "user", "content": "cat " * 5000}])


def _chat_streams(client: openai.OpenAI, seen: Seen) -> None:
    def stream(step: str, **fields: Any) -> None:
        given: dict[str, Any] = {"messages": HI, "max_tokens": 6, "temperature": 0} | fields
        create: Any = client.chat.completions.create
        _stream(seen, step, create(model="any", stream=True, **given))

    stream("stream")
    stream("stream with usage", stream_options={"include_usage": True})
    stream("stream of logprobs", logprobs=True, top_logprobs=2)
    stream("stream of a call", tools=TOOLS, tool_choice="required", max_tokens=120)


def _completions(client: openai.OpenAI, seen: Seen) -> None:
    def complete(step: str, **fields: Any) -> Any:
        given: dict[str, Any] = {"prompt": "Once", "max_tokens": 4, "temperature": 0} | fields
        create: Any = client.completions.create
        return _note(seen, step, lambda: create(model="any", **given))

    complete("completion")
    complete("completion with logprobs", logprobs=2)
    complete("several prompts", prompt=["Once", "The cat"])
    complete("tokens as the prompt", prompt=[1, 300])
    complete("two completions", n=2, temperature=1)
    complete("echo", echo=True)
    create: Any = client.completions.create
    found = create(model="any", prompt="Once", max_tokens=4, stream=True, temperature=0)
    _stream(seen, "completion as a stream", found)


def _responses(client: openai.OpenAI, seen: Seen) -> None:
    create: Any = client.responses.create
    given: dict[str, Any] = {"model": "any", "input": "hi", "temperature": 0}

    def respond(step: str, **fields: Any) -> None:
        _note(seen, step, lambda: create(**(given | {"max_output_tokens": 60} | fields)))

    respond("response")
    respond("response that is cut", max_output_tokens=3)
    respond("response with instructions", instructions="Be kind")
    items = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    respond("response to items", input=items)
    tool = {"type": "function", **WEATHER["function"], "strict": False}  # type: ignore[dict-item]
    respond("response with a call", tools=[tool], tool_choice="required", max_output_tokens=120)
    _stream(seen, "response as a stream", create(**given, max_output_tokens=60, stream=True))


def openai_vectors(target: Target, seen: Seen) -> None:
    """The embeddings of the `openai` package, which asks for base64."""
    with openai.OpenAI(base_url=f"{target.vectors}/v1", api_key=KEY, max_retries=0) as client:
        create = client.embeddings.create
        _note(seen, "one text", lambda: create(model="any", input="the cat"))
        _note(seen, "two texts", lambda: create(model="any", input=["the cat", "a dog"]))
        _note(seen, "floats", lambda: create(model="any", input="a", encoding_format="float"))
    with openai.OpenAI(base_url=f"{target.vectors}/v1", api_key="x", max_retries=0) as client:
        listed = client.models.list
        _note(seen, "a wrong key", listed)


def anthropic_package(target: Target, seen: Seen) -> None:
    """Programs of the `anthropic` package."""
    with anthropic.Anthropic(base_url=target.text, api_key="any", max_retries=0) as client:
        create: Any = client.messages.create
        given: dict[str, Any] = {"model": "any", "max_tokens": 6, "messages": HI}
        given["extra_body"] = {"temperature": 0, "seed": 1}
        tool = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}  # type: ignore[index]

        def ask(step: str, **fields: Any) -> None:
            _note(seen, step, lambda: create(**(given | fields)))

        ask("message")
        ask("a system prompt", system="Be kind")
        ask("blocks", messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
        ask("a stop sequence", stop_sequences=["a", "e"], max_tokens=40)
        ask("a call", tools=[tool], tool_choice={"type": "any"}, max_tokens=120)
        ask("a wrong role", messages=[{"role": "stranger", "content": "hi"}])
        _stream(seen, "stream", create(**given, stream=True))
        count: Any = client.messages.count_tokens
        _note(seen, "count", lambda: count(model="any", messages=HI))
