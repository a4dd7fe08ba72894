"""Fuzzes bodies of requests: JSON with other values, other keys and broken bytes.

A seed is a path in its first line, with a method before it if that is not POST, and a body in JSON
after it. Paths with a query are changed, too.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any, Final

from fuzz_server import FuzzedServer, scores_server, text_server, vectors_server
from fuzz_target import Outcome, corpus, mutated

DEEP: Final = tuple('{"a":' * n + "1" + "}" * n for n in (90, 200, 400))
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, 1e300, -1e300, 2**31, 2**63, 2**64, -(2**63), 10**400),
    *("", "a", "a" * 5000, "\x00", "😀", "\ud800", "../../etc/passwd", "%s%n", "\r\nX: y", "NaN"),
    *([], [[]], [None], [1, "a", []], ["a"] * 600, [0] * 5000, {}, {"type": 1}, {"": {}}),
    *("[" * 900 + "]" * 900, [{"function": "f"}]),
    *({"type": "text", "text": "a"}, [{"type": "image_url", "image_url": {"url": "file:///"}}]),
)
KEYS: Final = (
    *("prompt", "n_predict", "n_probs", "logit_bias", "stop", "stream", "grammar", "json_schema"),
    *("messages", "tools", "tool_choice", "response_format", "max_tokens", "temperature", "seed"),
    *("top_k", "top_p", "min_p", "samplers", "n", "best_of", "logprobs", "top_logprobs", "echo"),
    *("chat_template_kwargs", "reasoning_effort", "input", "content", "role", "regex", "dry_base"),
    *("mirostat", "ignore_eos", "return_tokens", "cache_prompt", "t_max_predict_ms", "n_keep", ""),
    *("mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "n_discard", "id_slot"),
    *("context_shift", "lora", "id", "scale", "filename", "input_prefix", "input_suffix", "suffix"),
    *("input_extra", "text", "n_indent", "options", "num_predict", "format", "think", "images"),
    *("keep_alive", "raw", "system", "context", "template", "response_fields", "return_progress"),
    *("stream_options", "timings_per_token", "post_sampling_probs", "query", "documents", "texts"),
    *("encoding_format", "dimensions", "embd_normalize", "truncate", "inputs", "top_n", "model"),
)
# paths of the servers that do not generate text
VECTORS: Final = (b"/v1/embeddings", b"/embedding", b"/embed", b"/api/embed", b"/api/embeddings")
SCORES: Final = (b"/rerank",)
PATH_PARTS: Final = (b"0", b"1", b"99", b"-1", b"1e3", b"%00", b"save", b"restore", b"erase", b"")
WORDS: Final = (
    *(b'"', b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]", b",", b":", b"null", b"NaN"),
    *(b"-Infinity", b"1e999", b"-", b"0x1", b"1" * 5000, b"[" * 3000, b'{"a":' * 3000, b"\xff"),
    *(b'"stream":true,', b'"prompt":1,', b"\xef\xbb\xbf", b"/*", b"'", b"\x00"),
)


def _leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """The containers and keys of all parts of a JSON value that have no parts."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        if part and isinstance(part, dict | list):
            yield from _leaves(part)
        else:
            yield value, key


def _deepen(rng: random.Random, value: Any) -> None:
    """Put a deeply nested value, or its JSON text, in the place of one leaf."""
    container, key = rng.choice(list(_leaves(value)) or [({}, "")])
    text = rng.choice(DEEP)
    container[key] = rng.choice([text, json.loads(text)])


class Bodies:
    """Bodies, sent to the server that has their endpoint."""

    def __init__(self) -> None:
        self._seeds = [seed.split(b"\n", 1) for seed in corpus("bodies")]
        self._text, self._vectors, self._scores = text_server(), vectors_server(), scores_server()

    def close(self) -> None:
        for server in (self._text, self._vectors, self._scores):
            server.close()

    def make(self, number: int) -> bytes:
        """The request with this number."""
        rng = random.Random(number)
        line, body = rng.choice(self._seeds)
        method, path = line.split(b" ", 1) if b" " in line else (b"POST", line)
        if b"?" in path and rng.random() < 0.4:
            old = rng.choice(re.findall(rb"\w+", path))
            path = path.replace(old, rng.choice(PATH_PARTS), 1)
        kind = rng.random()
        if kind < 0.1:  # alone: code that walks deep values sees valid ones only
            value = json.loads(body)
            _deepen(rng, value)
            body = json.dumps(value).encode()
        elif kind < 0.8:
            value = json.loads(body)
            for _ in range(rng.randint(1, 4)):
                value = self._changed(rng, value)
            body = json.dumps(value).encode()
        if kind >= 0.1 and rng.random() < 0.3:
            body = mutated(rng, [body, *(seed for _, seed in self._seeds)], WORDS)
        head = b"%b %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % (method, path)
        return head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
            len(body),
            body,
        )

    def _changed(self, rng: random.Random, value: Any) -> Any:
        """A JSON value with one part replaced, added or left out."""
        if not isinstance(value, dict | list) or rng.random() < 0.15:
            return rng.choice(VALUES)
        if not value or rng.random() < 0.2:
            new = rng.choice(VALUES)
            return {**value, rng.choice(KEYS): new} if isinstance(value, dict) else [*value, new]
        key: Any = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if rng.random() < 0.1:
            if isinstance(value, dict):
                return {k: v for k, v in value.items() if k != key}
            return value[:key] + value[key + 1 :]
        changed = value.copy()
        changed[key] = self._changed(rng, value[key])
        return changed

    def show(self, number: int) -> str:
        return repr(self.make(number))

    def try_input(self, number: int) -> Outcome:
        request = self.make(number)
        return self._server_of(request.split(b" ", 2)[1]).exchange(request)

    def _server_of(self, path: bytes) -> FuzzedServer:
        if path in VECTORS:
            return self._vectors
        return self._scores if path in SCORES else self._text
