"""Many texts and many clients: nothing is lost, and clients that disconnect drop their texts."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from embed_world import FakeEmbedContext, decoded, make_embedder, unit
from fake_context import WAIT_S
from http_world import HttpVocab, RunningServer, eventually, running

from lamella.runtime.instance import EmbeddingInstance
from lamella.server.routes_embed import Submission

VOCAB = HttpVocab()


def send(server: RunningServer, texts: Sequence[str]) -> socket.socket:
    """A client that sent a request and waits for the response."""
    raw = json.dumps({"input": texts}).encode()
    client = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
    client.sendall(head.encode() + raw)
    return client


class Gated:
    """A context that waits in its first step until `go_on` is set. Counts texts."""

    def __init__(self) -> None:
        self.context = FakeEmbedContext()
        self.context.on_embed = self._on_embed
        self.in_step, self.go_on = threading.Event(), threading.Event()
        self.n_texts = 0

    def load(self, max_client_waiting: int = 64) -> EmbeddingInstance:
        return make_embedder(self.context, max_waiting=2, max_client_waiting=max_client_waiting)

    def _on_embed(self, texts: Sequence[Any]) -> None:
        self.n_texts += len(texts)
        self.in_step.set()
        assert self.go_on.wait(WAIT_S)


def closings(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The number of closed submissions."""
    n, close = [0], Submission.close

    def counted(submission: Submission) -> None:
        close(submission)
        n[0] += 1

    monkeypatch.setattr(Submission, "close", counted)
    return lambda: n[0]


def test_ten_thousand_texts() -> None:
    context = FakeEmbedContext(n_out=64)
    texts = [chr(97 + i % 26) * (1 + i % 9) for i in range(10_000)]
    with running(lambda: make_embedder(context)) as server:
        reply = server.ok("/v1/embeddings", input=texts)
        assert [data["index"] for data in reply["data"]] == list(range(10_000))
        for i in range(0, 10_000, 501):
            wanted = unit(context.vector(VOCAB.tokenize(texts[i])))
            assert np.array_equal(decoded(reply["data"][i]["embedding"]), wanted)


def test_twenty_clients_get_their_own_vectors() -> None:
    context = FakeEmbedContext()
    with running(lambda: make_embedder(context)) as server, ThreadPoolExecutor(20) as pool:

        def call(i: int) -> bool:
            texts = [f"client {chr(97 + i)}" + "x" * j for j in range(i + 1)]
            data = server.ok("/v1/embeddings", input=texts)["data"]
            wanted = [unit(context.vector(VOCAB.tokenize(text))) for text in texts]
            return np.array_equal(decoded([one["embedding"] for one in data]), np.stack(wanted))

        assert all(pool.map(call, range(20)))


def test_a_client_that_disconnects_drops_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    n_closed, gated = closings(monkeypatch), Gated()
    with running(gated.load) as server:
        client = send(server, ["a"] * 1000)
        assert gated.in_step.wait(WAIT_S)
        client.close()
        eventually(lambda: n_closed() == 1)
        gated.go_on.set()
        assert len(server.ok("/v1/embeddings", input=["b"])["data"]) == 1
        assert gated.n_texts < 100


class GatedVocab(HttpVocab):
    """Waits in each text until `go_on` is set. Counts texts."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.n_texts = 0

    def tokenize(self, text: str, add_special: bool = True, **_: bool) -> list[int]:
        self.n_texts += 1
        self.begun.set()
        assert self.go_on.wait(WAIT_S)
        return super().tokenize(text, add_special)


def test_a_client_that_disconnects_ends_tokenizing(monkeypatch: pytest.MonkeyPatch) -> None:
    n_closed, vocab, context = closings(monkeypatch), GatedVocab(), FakeEmbedContext()
    with running(lambda: make_embedder(context, vocab)) as server:
        client = send(server, ["a"] * 1000)
        assert vocab.begun.wait(WAIT_S)
        client.close()
        eventually(lambda: n_closed() == 1)
        vocab.go_on.set()
        server.ok("/v1/embeddings", input="b")
        assert vocab.n_texts == 2
        assert server.opened.worker.n_waiting == 0


def test_too_many_requests() -> None:
    gated = Gated()
    with running(gated.load) as server, closing(send(server, ["a"])):
        assert gated.in_step.wait(WAIT_S)
        waiting = [send(server, ["a"]) for _ in range(2)]
        eventually(lambda: server.opened.worker.n_waiting == 2)
        reply = server.post("/v1/embeddings", {"input": "a"})
        assert (reply.status, reply.error["type"]) == (503, "unavailable_error")
        assert "retry-after" in reply.headers
        gated.go_on.set()
        for client in waiting:
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            client.close()


def test_too_many_requests_of_one_client() -> None:
    gated = Gated()
    with running(lambda: gated.load(1)) as server, closing(send(server, ["a"])):
        assert gated.in_step.wait(WAIT_S)
        with closing(send(server, ["a"])):
            eventually(lambda: server.opened.worker.n_waiting == 1)
            reply = server.post("/v1/embeddings", {"input": "a"})
            assert (reply.status, reply.error["type"]) == (429, "rate_limit_error")
            assert "retry-after" in reply.headers
            gated.go_on.set()


def test_a_stopping_server_answers() -> None:
    gated = Gated()
    with ThreadPoolExecutor(1) as pool:
        with running(gated.load) as server:
            reply = pool.submit(server.post, "/v1/embeddings", {"input": ["a"] * 100})
            assert gated.in_step.wait(WAIT_S)
            reply.add_done_callback(lambda _: gated.go_on.set())
        assert reply.result().error["type"] == "unavailable_error"


def test_a_stopping_server_ends_tokenizing() -> None:
    vocab = GatedVocab()
    with ThreadPoolExecutor(1) as pool:
        with running(lambda: make_embedder(vocab=vocab)) as server:
            reply = pool.submit(server.post, "/v1/embeddings", {"input": ["a"] * 1000})
            assert vocab.begun.wait(WAIT_S)
            reply.add_done_callback(lambda _: vocab.go_on.set())
        assert reply.result().error["type"] == "unavailable_error"
        assert vocab.n_texts == 1
