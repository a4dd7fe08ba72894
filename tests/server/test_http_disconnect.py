"""Clients that disconnect: their jobs end within one step, in any phase of a request."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import HttpVocab, RunningServer, eventually, make_model, running

from lamella.runtime.engine.engine import Engine
from lamella.runtime.instance import Instance
from lamella.server.bridge import Bridge

LONG: dict[str, Any] = {"prompt": "a" * 400, "ignore_eos": True}


def send(server: RunningServer, body: object) -> socket.socket:
    """A client that sent a request and waits for the response."""
    raw = json.dumps(body).encode()
    client = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
    head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
    client.sendall(head.encode() + raw)
    return client


def hang_up(client: socket.socket) -> None:
    client.close()


def reset(client: socket.socket) -> None:
    """Reset the connection, as after a crash of the client's machine."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


class Watched:
    """A model whose engine blocks in one step. Counts cancellations."""

    def __init__(
        self, n_step: int = 0, *, n_ctx: int = 512, vocab: HttpVocab | None = None
    ) -> None:
        self.context = FakeContext(n_ctx)
        self.vocab = vocab
        self.context.on_decode = self._on_decode
        self.n_step = n_step
        self.in_step, self.go_on = threading.Event(), threading.Event()
        self.n_cancelled = 0

    def load(self) -> Instance:
        model = make_model(self.context, self.vocab, n_parallel=2)
        self.engine: Engine = model.engine
        cancel = self.engine.cancel

        def counted(ticket: Any) -> None:
            cancel(ticket)
            self.n_cancelled += 1

        self.engine.cancel = counted  # type: ignore[method-assign]
        return model

    def _on_decode(self, step: int) -> None:
        if step == self.n_step:
            self.in_step.set()
            assert self.go_on.wait(WAIT_S)


@pytest.mark.parametrize("leave", [hang_up, reset])
@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_during_a_long_prefill(
    leave: Callable[[socket.socket], None], stream: bool
) -> None:
    watched = Watched(n_step=2)
    with running(watched.load) as server:
        clients = [send(server, LONG | {"stream": stream}) for _ in range(2)]
        assert watched.in_step.wait(WAIT_S)
        eventually(lambda: watched.engine.n_running + watched.engine.n_waiting == 2)
        for client in clients:
            leave(client)
        eventually(lambda: watched.n_cancelled == 2)
        watched.go_on.set()
        eventually(lambda: watched.engine.n_running + watched.engine.n_waiting == 0)
        assert len(watched.context.steps) == 2
        assert server.ok("/completion", prompt="a", n_predict=1)["tokens_predicted"] == 1


def test_disconnect_during_a_stream() -> None:
    watched = Watched(n_step=40)
    with running(watched.load) as server:
        with closing(send(server, {"prompt": "a", "ignore_eos": True, "stream": True})) as client:
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            assert watched.in_step.wait(WAIT_S)
        eventually(lambda: watched.n_cancelled == 1)
        watched.go_on.set()
        eventually(lambda: watched.engine.n_running == 0)
        assert len(watched.context.steps) == 40


def test_disconnect_of_a_waiting_request() -> None:
    watched = Watched(n_step=2)
    with running(watched.load) as server:
        clients = [send(server, LONG | {"n_predict": 1}) for _ in range(3)]
        assert watched.in_step.wait(WAIT_S)
        eventually(lambda: watched.engine.n_running + watched.engine.n_waiting == 3)
        for client in clients:
            client.close()
        eventually(lambda: watched.n_cancelled == 3)
        watched.go_on.set()
        eventually(lambda: watched.engine.n_running + watched.engine.n_waiting == 0)
        assert len(watched.context.steps) == 2


class GatedVocab(HttpVocab):
    """Blocks while tokenizing a long text, until `go_on` is set."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def tokenize(self, text: str, add_special: bool = True, **_: bool) -> list[int]:
        if len(text) > 100:
            self.begun.set()
            assert self.go_on.wait(WAIT_S)
        return super().tokenize(text, add_special)


def test_disconnect_while_the_prompt_is_tokenized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vocab, noticed, close = GatedVocab(), threading.Event(), Bridge.close

    def noting(bridge: Bridge) -> None:
        close(bridge)
        noticed.set()

    monkeypatch.setattr(Bridge, "close", noting)
    watched = Watched(n_step=1, n_ctx=100_000, vocab=vocab)
    with running(watched.load) as server:
        client = send(server, {"prompt": "a" * 50_000})
        assert vocab.begun.wait(WAIT_S)
        client.close()
        assert noticed.wait(WAIT_S)
        vocab.go_on.set()
        watched.go_on.set()
        assert server.ok("/completion", prompt="a", n_predict=1, ignore_eos=True)
        assert len(watched.context.steps) == 1  # the long prompt was never submitted


def test_a_client_that_does_not_read_blocks_no_other() -> None:
    context = FakeContext(n_ctx=800)
    with running(lambda: make_model(context, n_parallel=2)) as server:
        # about 4 kB per token: more than the buffers of the sockets hold
        body = {"prompt": "a", "ignore_eos": True, "stream": True, "n_probs": 40}
        with closing(send(server, body)):
            eventually(lambda: len(context.steps) > 0)
            assert server.ok("/completion", prompt="a", n_predict=5)["tokens_predicted"] <= 5
            eventually(lambda: server.model.engine.n_running == 0)  # the other one finished too
