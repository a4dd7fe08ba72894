"""The requests of `scripts/soak`: those whose results must be equal whenever they are sent, and
those that must be refused.

Knows no connection. Tested by tests/server/test_soak.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from raw_http import Answer

TEXT, VECTORS, ROUTER = "text", "vectors", "router"  # the servers
MODELS: Final = ("first", "second")  # of the router
WORDS: Final = "the cat sat on a mat and saw one big red dog run home to play".split(" ")  # noqa: SIM905
N_SHIFTED: Final = 1000  # more tokens than the context has
BAD_STATUSES: Final = frozenset({400, 403, 404, 405, 408, 411, 413, 415, 417, 422, 431, 501})


@dataclass(frozen=True)
class Case:
    """A request with a result that depends on nothing else."""

    kind: str
    server: str
    path: str
    body: dict[str, Any]
    read: Callable[[Any], object]

    def result(self, answer: Answer) -> object:
        """The part of a reply that must always be the same."""
        kind = answer.headers.get("content-type", "")
        if "text/event-stream" in kind:
            return "".join(_pieces(answer.raw.decode()))
        if "ndjson" in kind:
            return "".join(_lines(answer.raw.decode()))
        return self.read(answer.json)


def make_cases(seed: int, n_each: int) -> list[Case]:
    """Cases of a seed, so many of each kind."""
    rng = random.Random(f"cases {seed}")
    return [case for _ in range(n_each) for case in _one_of_each(rng)]


def _one_of_each(rng: random.Random) -> list[Case]:
    greedy = {"temperature": 0}
    sampled = {"temperature": 1.2, "seed": rng.randrange(1 << 30), "min_p": 0.02}
    messages = [{"role": "user", "content": _words(rng, 12)}]
    tokens = [rng.randrange(3, 200) for _ in range(20)]
    schema = {"type": "object", "properties": {_words(rng, 1): {"enum": WORDS[:5]}}}
    format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}]
    n = rng.randrange(5, 60)
    long = _words(rng, rng.randrange(30, 90))
    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("completion", "/completion", greedy | {"prompt": _words(rng, 5), "n_predict": n}),
        ("long prompt", "/completion", greedy | {"prompt": long, "n_predict": 5}),
        ("sampled", "/completion", sampled | {"prompt": _words(rng, 5), "n_predict": n}),
        ("stream", "/completion", greedy | {"prompt": long, "n_predict": n, "stream": True}),
        ("several", "/completion", greedy | {"prompt": ["a", "the", "one"], "n_predict": n}),
        ("grammar", "/completion", greedy | {"prompt": "a", "grammar": 'root ::= "x"{3} [a-z]+'}),
        ("openai", "/v1/completions", greedy | {"prompt": _words(rng, 4), "max_tokens": n}),
        ("chat", "/v1/chat/completions", greedy | {"messages": messages, "max_tokens": n}),
        ("schema", "/v1/chat/completions", greedy | {"messages": messages}),
        ("tools", "/v1/chat/completions", greedy | {"messages": messages, "tools": tools}),
        ("messages", "/v1/messages", greedy | {"messages": messages, "max_tokens": n}),
        ("responses", "/v1/responses", greedy | {"input": long, "max_output_tokens": n}),
        ("tokenize", "/tokenize", {"content": long, "with_pieces": True}),
        ("detokenize", "/detokenize", {"tokens": tokens}),
        ("template", "/apply-template", {"messages": messages}),
    ]
    limits: dict[str, dict[str, Any]] = {
        "grammar": {"n_predict": 12},
        "schema": {"response_format": format},
    }
    limits |= {"tools": {"tool_choice": "required", "max_tokens": n}}
    cases = [
        Case(kind, TEXT, path, body | limits.get(kind, {}), _READ.get(path, _same))
        for kind, path, body in rows
    ]
    texts = [_words(rng, 3), long]
    cases.append(Case("embeddings", VECTORS, "/v1/embeddings", {"input": texts}, _vectors))
    return cases + _of_newer_endpoints(rng, n) + [c for name in MODELS for c in _routed(rng, name)]


def _of_newer_endpoints(rng: random.Random, n: int) -> list[Case]:
    """Cases of infill, adapters, context shift, Mirostat and ollama's API."""
    greedy = {"temperature": 0, "n_predict": n}
    options = {"options": {"temperature": 0, "num_predict": n}}
    chat = {"messages": [{"role": "user", "content": _words(rng, 9)}], **options}
    shift = {"n_predict": N_SHIFTED, "context_shift": True, "ignore_eos": True, "n_keep": 4}
    mirostat = {"mirostat": 2, "temperature": 1, "seed": rng.randrange(1 << 30), "n_predict": n}
    adapters = [{"id": 0, "scale": rng.choice([0.5, 1, -1])}]
    prompt = {"prompt": _words(rng, 6)}
    fill = {"input_prefix": _words(rng, 4), "input_suffix": _words(rng, 4)}
    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("infill", "/infill", greedy | fill),
        ("adapter", "/completion", greedy | prompt | {"lora": adapters}),
        ("shift", "/completion", greedy | prompt | shift),
        ("mirostat", "/completion", mirostat | prompt),
        ("ollama chat", "/api/chat", chat),
        ("ollama text", "/api/generate", {**prompt, "raw": True, "stream": False, **options}),
    ]
    return [Case(kind, TEXT, path, body, _READ[path]) for kind, path, body in rows]


def _routed(rng: random.Random, model: str) -> list[Case]:
    """Cases of a server with several models."""
    greedy = {"model": model, "temperature": 0, "max_tokens": rng.randrange(5, 40)}
    text, messages = {"prompt": _words(rng, 6)}, [{"role": "user", "content": _words(rng, 9)}]
    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("routed", "/v1/completions", greedy | text),
        ("routed stream", "/completion", greedy | text | {"stream": True}),
        ("routed chat", "/v1/chat/completions", greedy | {"messages": messages}),
    ]
    return [Case(kind, ROUTER, path, body, _READ[path]) for kind, path, body in rows]


def _words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choices(WORDS, k=n))


def _same(body: Any) -> object:
    return body


def _completion(body: Any) -> object:
    if isinstance(body, list):
        return [each["content"] for each in body]
    return body["content"]


def _response(body: Any) -> object:
    return body["response"]


def _choices(body: Any) -> object:
    return [
        choice.get("text") or _message(choice["message"], choice["finish_reason"])
        for choice in body["choices"]
    ]


def _message(message: Any, reason: str) -> object:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return [message.get("content"), message.get("reasoning_content"), calls, reason]


def _blocks(body: Any) -> object:
    return [{key: block[key] for key in block if key != "id"} for block in body["content"]]


def _output(body: Any) -> object:
    return [[part.get("text") for part in item.get("content") or ()] for item in body["output"]]


def _vectors(body: Any) -> object:
    return [each["embedding"] for each in body["data"]]


_READ: Final[dict[str, Callable[[Any], object]]] = {
    "/completion": _completion,
    "/infill": _completion,
    "/api/chat": _same,  # a stream
    "/api/generate": _response,
    "/v1/completions": _choices,
    "/v1/chat/completions": _choices,
    "/v1/messages": _blocks,
    "/v1/responses": _output,
}


def _lines(text: str) -> list[str]:
    """The texts of a stream of lines. Raises ValueError if it reports an error, or has no end."""
    lines = [json.loads(line) for line in text.splitlines()]
    if not lines[-1].get("done"):
        raise ValueError(str(lines[-1])[:200])
    return [line["message"]["content"] for line in lines]


def _pieces(text: str) -> list[str]:
    """The texts of a stream's events. Raises ValueError if the stream reports an error."""
    events = [json.loads(frame[6:]) for frame in text.split("\n\n") if frame.startswith("data: {")]
    if errors := [event for event in events if "error" in event]:
        raise ValueError(str(errors[0])[:200])
    return [event.get("content", "") for event in events]


def bad_request(rng: random.Random) -> tuple[str, bytes]:
    """A path and a body that must be refused."""
    path = rng.choice(
        [
            *("/completion", "/v1/chat/completions", "/tokenize", "/v1/messages", "/infill"),
            *("/lora-adapters", "/api/chat", "/api/generate", "/slots/0?action=save"),
        ]
    )
    noise = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300)))
    values: list[object] = [-1e300, [], {}, "x" * 1000, True, [[[]]], 2**70]
    fields = ("n_predict", "prompt", "messages", "content", "temperature", "stop", "logit_bias")
    wrong = {name: {"a": rng.choice(values)} for name in fields}
    return path, rng.choice(
        [
            noise,
            b"",
            b"{" + noise,
            b"[" * rng.randrange(1, 100_000),
            json.dumps(wrong).encode(),
            b'{"prompt": "\xff"}',
            json.dumps({"prompt": "a", "messages": 1, "content": 2, "n_predict": []}).encode(),
        ]
    )
