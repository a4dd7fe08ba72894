"""Templates of events: the same bytes as `json.dumps`, whatever the texts are."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from http_world import make_model

from lamella.model.chat.message import (
    ArgumentsDelta,
    CallDelta,
    ContentDelta,
    Delta,
    ReasoningDelta,
)
from lamella.runtime.engine.job import Result, StopType, Timings
from lamella.runtime.instance import Instance
from lamella.runtime.params import RequestParams
from lamella.runtime.text import Piece
from lamella.server.anthropic.body import MessagesBody
from lamella.server.anthropic.replies import MessageReplies
from lamella.server.bridge import Choice, Event
from lamella.server.parsing import parse_body
from lamella.server.replies import CompletionReplies, NativeReplies, Replies
from lamella.server.replies_chat import ChatReplies
from lamella.server.responses.body import ResponsesBody
from lamella.server.responses.replies import ResponsesReplies, ResponsesTask
from lamella.server.schema import CompletionBody, GenerationBody
from lamella.server.schema_chat import ChatBody
from lamella.server.sse import GAP, Template, json_text, named_event_bytes, numbers_text
from lamella.server.tasks import GenerationTask

HARD = [
    *("", " ", '"', "\\", "\n\r\t", "\0\x01\x1f\x7f", "%", "%s %d %%", "{}", "</script>", "/"),
    *("ä", "€", "漢字", "😀", "\ud800", "\u2028\u2029", "\ufffd", "a" * 3000, 'data: {"x":1}\n\n'),
]
USER = {"role": "user", "content": "hi %s"}
Kind = tuple[type[Replies], type[GenerationBody], dict[str, Any]]
KINDS: dict[str, Kind] = {
    "native": (NativeReplies, CompletionBody, {"prompt": "a", "n": 2}),
    "completions": (CompletionReplies, CompletionBody, {"prompt": "a", "n": 2}),
    "chat": (ChatReplies, ChatBody, {"messages": [USER], "n": 2}),
    "messages": (MessageReplies, MessagesBody, {"messages": [USER], "max_tokens": 5}),
    "hidden thinking": (
        MessageReplies,
        MessagesBody,
        {
            "messages": [USER],
            "max_tokens": 5,
            "thinking": {"type": "adaptive", "display": "omitted"},
        },
    ),
    "responses": (ResponsesReplies, ResponsesBody, {"input": "hi"}),
}


@pytest.fixture(scope="module")
def model() -> Iterator[Instance]:
    model = make_model()
    yield model
    model.engine.close()


def text_of(rng: random.Random) -> str:
    return "".join(rng.choices(HARD, k=rng.randint(0, 3)))


def replies_of(model: Instance, kind: Kind) -> Replies:
    replies, body, fields = kind
    parsed = parse_body(body, json.dumps(fields | {"model": "a %d %s \\ä"}).encode())
    params = RequestParams.make({})
    task = GenerationTask(body=parsed, params=params, prompts=[(1, 2, 3)])
    if replies is ResponsesReplies:
        task = ResponsesTask(body=parsed, params=params, prompts=[(1, 2, 3)], tools={})
    return replies(model, task, [Choice(i, 3, params) for i in range(parsed.n_choices)])


def same_ids(replies: Replies, other: Replies) -> None:
    """Give both replies the same ids and times."""
    other.id = replies.id
    for name in ("created", "_created", "_same"):
        if hasattr(replies, name):
            setattr(other, name, getattr(replies, name))


def deltas_of(rng: random.Random, text: str, n_calls: list[int]) -> list[Delta]:
    found: list[Delta] = []
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice([ContentDelta, ContentDelta, ReasoningDelta, CallDelta, ArgumentsDelta])
        if kind is CallDelta:
            n_calls[0] += 1
            found.append(CallDelta(n_calls[0] - 1, f"call_{n_calls[0]}", text))
        elif kind is ArgumentsDelta:
            if found and isinstance(found[-1], CallDelta | ArgumentsDelta):
                found.append(ArgumentsDelta(n_calls[0] - 1, text))
        else:
            found.append(kind(text))
    return found


@pytest.mark.parametrize("text", HARD)
def test_a_template_has_the_bytes_of_json_dumps(text: str) -> None:
    def event(content: Any, tokens: Any, n: Any) -> dict[str, Any]:
        return {"type": "%s.x", "a": content, "100%": {"t": tokens, "s": "%d\\"}, "n": n}

    template = Template(event(GAP, GAP, GAP), encode=named_event_bytes)
    for tokens in ([], [5], [1, 2, 30000]):
        raw = json.dumps(event(text, tokens, len(text)), separators=(",", ":"))
        expected = f"event: %s.x\ndata: {raw}\n\n".encode()
        found = template.fill(json_text(text), numbers_text(tokens), len(text))
        assert found == expected == named_event_bytes(event(text, tokens, len(text)))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_frames_are_the_bytes_of_the_chunks(
    model: Instance, monkeypatch: pytest.MonkeyPatch, kind: Kind, seed: int
) -> None:
    # so that both make the same ids
    monkeypatch.setattr("secrets.token_hex", lambda n: "0" * n)
    monkeypatch.setattr("secrets.token_urlsafe", lambda n: "0" * n)
    rng = random.Random(seed)
    replies, slow = replies_of(model, kind), replies_of(model, kind)
    same_ids(replies, slow)
    n_calls = [0]
    for step in range(60):
        text = text_of(rng)
        event: Event = Piece(text, tuple(rng.choices(range(40000), k=rng.randint(0, 3))))
        if step == 59:
            event = Result(
                stop_type=StopType.EOS,
                n_prompt=3,
                n_cached=0,
                n_predicted=4,
                truncated=False,
                seed=1,
                timings=Timings(
                    cache_n=0, prompt_n=3, prompt_ms=1.0, predicted_n=4, predicted_ms=1.0
                ),
            )
        deltas = deltas_of(rng, text, n_calls)
        at = rng.randrange(len(replies.choices))
        for each in (replies, slow):
            each.choices[at].add(event, 1.0)
        expected = slow.bytes_of(slow.chunks(slow.choices[at], event, deltas))
        assert replies.frames(replies.choices[at], event, deltas) == expected


def test_probabilities_and_timings_need_no_template(model: Instance) -> None:
    fields = {"prompt": "a", "timings_per_token": True}
    replies = replies_of(model, (NativeReplies, CompletionBody, fields))
    piece = Piece("a", (5,))
    replies.choices[0].add(piece, 1.0)
    assert b'"timings":{' in replies.frames(replies.choices[0], piece, ())
