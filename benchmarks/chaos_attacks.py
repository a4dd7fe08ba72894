"""The attacks of `scripts/chaos attack`, each in a process of its own at nice 19.

An attack prepares what it needs, for example 1,000 connections, and returns one round of itself.
Its threads call the round again and again. Tested by tests/server/test_chaos.py.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, Final, NamedTuple

from raw_http import bearer, connect, failure, message, outcome

SOURCE: Final = "127.0.0.2"
NICE: Final = 19
N_BODY_BYTES: Final = 1 << 20  # the least limit of bodies
Round = Callable[[], None]


class Target:
    """The server, as an attacker sees it, and what its requests came to."""

    def __init__(self, port: int, key: str, source: str = SOURCE) -> None:
        self.port, self.source = port, source
        self.counts: Counter[str] = Counter()
        self._key = bearer(key)
        self._opened: list[socket.socket] = []

    def message(
        self, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> bytes:
        method = "GET" if body is None else "POST"
        return message(method, path, body, self._key | (headers or {}))

    def send(self, raw: bytes) -> None:
        """Send a request, read the reply to its end and count its status."""
        self.counts[outcome(self.port, raw, source=self.source, timeout=120)] += 1

    def opened(self, raw: bytes = b"", n_receive: int | None = None) -> socket.socket | None:
        """A connection with a request whose reply is never read; None if it failed."""
        try:
            client = connect(self.port, source=self.source, timeout=10)
            if n_receive is not None:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, n_receive)
            client.sendall(raw)
        except OSError as error:
            self.counts[failure(error)] += 1
            time.sleep(0.05)
            return None
        self.counts["opened"] += 1
        self._opened.append(client)
        return client

    def close(self) -> None:
        """Close all connections that were opened."""
        for client in self._opened:
            client.close()


class Attack(NamedTuple):
    """A kind of attack."""

    n_threads: int
    prepare: Callable[[Target], Round]
    text: str


def _sender(target: Target, *raws: bytes) -> Round:
    """Rounds that send these requests in turn."""
    turns = itertools.cycle(raws)
    return lambda: target.send(next(turns))


def _n_probs(target: Target) -> Round:
    body = {"prompt": "a", "n_probs": 512, "ignore_eos": True}
    many = {**body, "prompt": ["a"] * 32}
    return _sender(target, *(target.message("/completion", each) for each in (body, many)))


def _biases(target: Target) -> Round:
    texts = [[f"{i} " + "the cat " * 1000, 1] for i in range(1500)]
    return _sender(target, target.message("/completion", {"prompt": "a", "logit_bias": texts}))


def _idle(target: Target) -> Round:
    kept = deque(target.opened() for _ in range(1000))

    def one_more() -> None:
        kept.append(target.opened())
        time.sleep(1 / 50)

    return one_more


def _unread(target: Target) -> Round:
    body = {"prompt": "a", "stream": True, "ignore_eos": True, "n_probs": 20}
    raw = target.message("/completion", body)
    kept = [target.opened(raw, 4096) for _ in range(16)]

    def replace_closed() -> None:
        time.sleep(0.5)
        for i, client in enumerate(kept):
            if client is None or _is_closed(client):
                target.counts["closed by the server"] += client is not None
                kept[i] = target.opened(raw, 4096)

    return replace_closed


def _is_closed(client: socket.socket) -> bool:
    """True if the server has reset the connection. Reads nothing."""
    try:
        return client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
    except OSError:
        return True


def _tokenize(target: Target) -> Round:
    return _sender(target, target.message("/tokenize", {"content": "the cat " * 500_000}))


def _prompts(target: Target) -> Round:
    text = "the cat sat " * (15_000_000 // 12)
    return _sender(target, target.message("/completion", {"prompt": text, "n_predict": 1}))


def _keys(target: Target) -> Round:
    numbers = itertools.count()

    def one_more() -> None:
        wrong = bearer(f"wrong{next(numbers)}")
        target.send(target.message("/completion", {"prompt": "a"}, wrong))

    return one_more


def _foreign(target: Target) -> Round:
    numbers = itertools.count()

    def one_more() -> None:
        name = f"{next(numbers)}.example"
        origin = {"Origin": f"https://{name}"}
        target.send(target.message("/props", None, {"Host": name}))
        target.send(target.message("/tokenize", {"content": "a"}, origin))

    return one_more


def _half(target: Target) -> Round:
    """Bodies that stop halfway, and go on with a byte now and then."""
    raw = target.message("/completion", {"prompt": "a"}, {"Content-Length": "1000000"})
    kept = [target.opened(raw) for _ in range(100)]

    def one_byte_each() -> None:
        time.sleep(1)
        for i, client in enumerate(kept):
            try:
                if client is None:
                    raise BrokenPipeError
                client.sendall(b" ")
            except OSError:
                kept[i] = target.opened(raw)

    return one_byte_each


def _health_flood(target: Target) -> Round:
    return _flood(target, target.message("/health", None, {"Connection": "keep-alive"}))


def _tokenize_flood(target: Target) -> Round:
    headers = {"Connection": "keep-alive"}
    return _flood(target, target.message("/tokenize", {"content": "the cat"}, headers))


def _flood(target: Target, raw: bytes) -> Round:
    """Rounds of 1,000 requests, 20 at once on each connection, whose replies are only counted."""
    n_at_once = 20

    def one_round() -> None:
        client = target.opened()
        if client is None:
            return
        with suppress(OSError), client:
            for _ in range(50):
                client.sendall(raw * n_at_once)
                n_seen = 0
                while n_seen < n_at_once:
                    part = client.recv(1 << 20)
                    n_seen += part.count(b"HTTP/1.1 ")
                    if not part:
                        return
                    for status in part.split(b"HTTP/1.1 ")[1:]:
                        target.counts[status[:3].decode("latin-1")] += 1

    return one_round


def _parts(target: Target) -> Round:
    return _sender(target, target.message("/tokenize", {"content": ["a"] * 1_000_000}))


def _stops(target: Target) -> Round:
    body: dict[str, Any] = {"prompt": ["a"] * 64, "ignore_eos": True, "n_predict": 512}
    stops = [f"{i}" + "z" * 500 for i in range(32)]
    return _sender(target, target.message("/completion", {**body, "stop": stops}))


def _bodies(target: Target) -> Round:
    """Bodies that are read whole, as they are just below the least limit of bodies, and are slow to
    check or to render: many values, keys, messages or escaped characters."""
    n = N_BODY_BYTES
    message = {"role": "user", "content": "a" * 32}  # so many that all are rendered
    n_messages = n // (len(json.dumps(message)) + 2)
    texts = [
        ("/completion", '{"prompt": [' + "1," * ((n - 20) // 2) + "1]}"),
        ("/completion", '{"prompt": "' + "\\u0061" * ((n - 20) // 6) + '"}'),
        ("/completion", "{" + ", ".join(f'"x{i:05}": 1' for i in range(n // 13)) + "}"),
        ("/tokenize", '{"content": "' + "a" * (n - 20) + '"}'),
        ("/v1/chat/completions", json.dumps({"messages": [message] * (n_messages - 1)})),
        ("/v1/embeddings", '{"input": [' + '"a",' * ((n - 20) // 4) + '"a"]}'),
    ]
    assert all(n // 2 < len(text) < n for _, text in texts)
    return _sender(target, *(target.message(path, text.encode()) for path, text in texts))


ATTACKS: Final = {
    "n_probs": Attack(4, _n_probs, "512 probabilities for every token, of 1 and of 32 prompts"),
    "biases": Attack(2, _biases, "1,500 biases of texts of 2,000 tokens"),
    "stops": Attack(2, _stops, "64 prompts with 32 long stop strings"),
    "idle": Attack(1, _idle, "1,000 silent connections, and 50 more each second"),
    "unread": Attack(1, _unread, "16 streams that are never read"),
    "tokenize": Attack(12, _tokenize, "12 clients with 4 MB for /tokenize"),
    "prompts": Attack(4, _prompts, "4 clients with prompts of 15 MB"),
    "keys": Attack(2, _keys, "wrong API keys"),
    "foreign": Attack(2, _foreign, "Hosts and Origins of other sites"),
    "half": Attack(1, _half, "100 bodies of which one byte a second arrives"),
    "health-flood": Attack(2, _health_flood, "pipelined requests for /health"),
    "tokenize-flood": Attack(2, _tokenize_flood, "pipelined requests for /tokenize"),
    "parts": Attack(2, _parts, "a million parts of text for /tokenize"),
    "bodies": Attack(4, _bodies, "bodies just below 1 MiB, slow to check"),
}


def attack(name: str, port: int, key: str, begin: Event, stop: Event, result: Connection) -> None:
    """Prepare an attack, send True, and attack from `begin` to `stop`. Send the counts."""
    os.nice(NICE)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kind, target = ATTACKS[name], Target(port, key)
    one_round = kind.prepare(target)
    result.send(True)
    begin.wait()

    def run() -> None:
        while not stop.is_set():
            one_round()

    for _ in range(kind.n_threads):
        threading.Thread(target=run, daemon=True).start()
    stop.wait()
    result.send(json.loads(json.dumps(target.counts)))
    os._exit(0)  # threads may wait for replies
