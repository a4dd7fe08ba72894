"""Streams that another replica goes on with: it evaluates the sent tokens, and repeats no step."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from replica_world import call, reply_of

from lamella.base.background import begin
from lamella.cluster.calls import Head
from lamella.cluster.replica import Replica
from lamella.cluster.served import Served
from lamella.cluster.streams import PassedBytes, Resumed
from lamella.model.shipped import shipped_model
from lamella.runtime.instance import Instance
from lamella.runtime.params import OpenParams
from lamella.server.broken_streams import END_OF_EVENT, EVENTS

N_PREDICT = 60
CHAT = "/v1/chat/completions"
MESSAGES = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}]}
FREE = {"max_tokens": N_PREDICT, "temperature": 1.0, "seed": 7, "ignore_eos": True}
SCHEMA = {
    "type": "object",
    "properties": {"where": {"type": "string", "minLength": 30, "maxLength": 60}},
    "required": ["where"],
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
THINKING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: <think>\n{% endif %}{# </think> #}"
)
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "text": (CHAT, {**MESSAGES, **FREE}),
    "samplers": (
        "/v1/completions",
        {
            **{"prompt": "Once", **FREE, "repeat_penalty": 1.3, "dry_multiplier": 0.8},
            **{"xtc_probability": 0.5, "xtc_threshold": 0.1},
        },
    ),
    "mirostat": ("/completion", {"prompt": "Once", **FREE, "mirostat": 2, "n_probs": 2}),
    "logprobs": (CHAT, {**MESSAGES, **FREE, "logprobs": True, "top_logprobs": 2}),
    "many bytes": ("/completion", {"prompt": "Once", **FREE, "regex": "(é|漢字|🦊| ){40}"}),
    "grammar": (
        CHAT,
        {
            **{**MESSAGES, **FREE, "max_tokens": 200, "ignore_eos": False},
            "json_schema": SCHEMA,
        },
    ),
    "a call": (
        CHAT,
        {
            **{**MESSAGES, **FREE, "max_tokens": 200, "ignore_eos": False},
            **{"tools": [TOOL], "tool_choice": "required"},
        },
    ),
    "usage": (CHAT, {**MESSAGES, **FREE, "stream_options": {"include_usage": True}}),
    "Anthropic": ("/v1/messages", {**MESSAGES, **FREE}),
    "responses": ("/v1/responses", {"input": "Tell me a story.", **FREE, "sse_ping_interval": -1}),
    "no guesses": (CHAT, {**MESSAGES, **FREE, "spec_type": "none"}),
}
# what differs between equal replies
_OWN = re.compile(
    r'"(id|created|created_at|completed_at|item_id|response_id|call_id|obfuscation)":'
    r'("[^"]*"|\d+)|"timings":\{[^}]*\}|"cached_tokens":\d+|"tokens_cached":\d+'
)


@dataclass
class Streamed:
    """A stream: its events without what is told about tokens, the tokens, and the steps it took."""

    events: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    n_tokens: list[int] = field(default_factory=list)  # known with each event
    n_steps: int = 0

    def plain(self) -> list[str]:
        """The events as they are in each replica."""
        return [_OWN.sub("", event) for event in self.events]


class World:
    """A replica in a thread with an event loop."""

    def __init__(self, served: Served) -> None:
        self.replica = Replica(served, "r1")
        self._loop = asyncio.new_event_loop()
        begin(self._loop.run_forever, "test-loop")
        self._run(self.replica.start())

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(100)

    def close(self) -> None:
        self._run(self.replica.close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def stream(self, path: str, body: Mapping[str, Any], sent: Sequence[int] = ()) -> Streamed:
        """Ask for a stream that goes on after some tokens."""
        model = self.replica.state.model
        assert isinstance(model, Instance)
        n_before = model.engine.steps.n_steps
        found: Streamed = self._run(self._stream(path, body, sent))
        found.n_steps = model.engine.steps.n_steps - n_before
        return found

    async def _stream(self, path: str, body: Mapping[str, Any], sent: Sequence[int]) -> Streamed:
        asked = call(path, {**body, "stream": True, "cache_prompt": False})
        asked.sent = sent
        found, passed, kept = Streamed(), PassedBytes(EVENTS), Resumed()
        async for item in reply_of(self.replica, asked):
            if isinstance(item, Head):
                assert item.status == 200
                continue
            for event in passed.add(item).split(END_OF_EVENT)[:-1]:
                event_text = kept.add(event + END_OF_EVENT).decode()
                if event_text:
                    found.events.append(event_text)
                    found.n_tokens.append(len(kept.tokens))
        found.tokens = kept.tokens.tolist()
        return found


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    params = OpenParams.make({"n_ctx": 2048, "n_threads": 1, "n_parallel": 2})
    found = World(Served(name="tiny", params=params))
    yield found
    found.close()


def check(world: World, path: str, body: Mapping[str, Any], *, n_least: int = 30) -> Streamed:
    """The same events after some, most and all of the tokens, in few steps. Return the stream."""
    whole = world.stream(path, body)
    is_guided = not {"regex", "json_schema", "tools"}.isdisjoint(body)
    assert len(whole.tokens) >= n_least
    assert not any('"error":{' in event for event in whole.events)
    n = len(whole.tokens)
    for n_sent in (1, n // 2, n - 3, n):
        again = world.stream(path, body, whole.tokens[:n_sent])
        assert again.plain() == whole.plain()
        assert again.tokens == whole.tokens
        # the prompt, the sent tokens, and those after them; a busy machine guesses less in grammars
        if not is_guided:
            assert again.n_steps <= n - n_sent + 8
    return whole


@pytest.mark.parametrize("name", CASES)
def test_the_events_are_the_same(world: World, name: str) -> None:
    path, body = CASES[name]
    check(world, path, body)


def test_text_before_a_stop_string(world: World) -> None:
    """The stop string begins in a sent token, or among them."""
    path, body = CASES["text"]
    events = [json.loads(e[6:]) for e in world.stream(path, body).events if "[DONE]" not in e]
    deltas = [event["choices"][0]["delta"].get("content") or "" for event in events]
    text = "".join(deltas)
    at = text.index(" ", 2 * len(text) // 3)
    whole = check(world, path, {**body, "stop": [text[at : at + 6]]})
    assert len("".join(whole.events)) < len("".join(map(str, events)))


def test_a_budget_of_reasoning_and_a_draft_model() -> None:
    """Tokens that replaced sampled ones are among the sent ones, and a draft model sees all."""
    options = {"n_ctx": 1024, "n_threads": 1, "n_parallel": 2, "chat_template": THINKING}
    params = OpenParams.make({**options, "draft_model": str(shipped_model())})
    world = World(Served(name="tiny", params=params))
    try:
        body = {**MESSAGES, **FREE, "reasoning_budget_tokens": 12}
        for kind in ("none", "draft-simple"):
            whole = check(world, CHAT, {**body, "spec_type": kind})
            assert any("reasoning_content" in event for event in whole.events)
            assert any('"content":"' in event for event in whole.events[12:])
    finally:
        world.close()


def test_a_resumed_stream_goes_on_at_the_same_byte(world: World) -> None:
    """As the ingress does it: after each event of a stream, with the tokens that it knows then."""
    path, body = CASES["many bytes"]
    whole = world.stream(path, body)
    text = "".join(whole.events)
    for n_events in itertools.chain(range(0, len(whole.events), 9), [len(whole.events) - 1]):
        kept = Resumed()
        begun = b"".join(kept.add(event.encode()) for event in whole.events[:n_events])
        kept.begin_again()
        n_tokens = whole.n_tokens[n_events - 1] if n_events else 0
        again = world.stream(path, body, whole.tokens[:n_tokens])
        rest = b"".join(kept.add(event.encode()) for event in again.events)
        assert _OWN.sub("", (begun + rest).decode()) == _OWN.sub("", text)


def test_another_text_is_no_stream_of_two_halves(world: World) -> None:
    path, body = CASES["text"]
    tokens = world.stream(path, body).tokens
    tokens[20] += 1
    again = world.stream(path, body, tokens)
    assert "error" in again.events[-1]
    assert len(again.tokens) <= 20
