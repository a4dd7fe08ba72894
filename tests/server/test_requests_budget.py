"""The memory of all running requests is limited, also that of one client, and is freed again."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from embed_world import make_embedder
from fake_context import WAIT_S, FakeContext
from http_world import make_model, running

from lamella.base.errors import ClientLimitError, OverloadedError, RequestError
from lamella.server import state
from lamella.server.budget import MIB, RequestsBudget, Reservation
from lamella.server.config import ServerConfig


def test_a_reservation_is_freed_when_its_block_ends() -> None:
    budget = RequestsBudget(4, 8)
    with budget.reservation("a") as one:
        one.take(3 * MIB)
        one.take(MIB)
        assert budget.n_held == 4 * MIB
    assert budget.n_held == 0
    one.take(MIB)  # by a thread that was late
    assert budget.n_held == 0


def test_a_client_may_hold_half() -> None:
    budget = RequestsBudget(4, 8)
    with budget.reservation("a") as one, budget.reservation("a") as two:
        one.take(3 * MIB)
        with pytest.raises(ClientLimitError, match=r"2.* MiB.*3.* MiB.*4.* MiB.*--requests-ram"):
            two.take(2 * MIB)
        two.take(MIB)
        assert budget.n_held == 4 * MIB


def test_a_reservation_takes_the_place_of_others() -> None:
    budget = RequestsBudget(8, 8)
    with (
        budget.reservation("a") as one,
        budget.reservation("b") as two,
        budget.reservation("a") as new,
    ):
        one.take(3 * MIB)
        two.take(2 * MIB)
        with pytest.raises(OverloadedError, match="running requests 3"):  # a client may hold 4
            new.take(2 * MIB, two)
        assert (budget.n_held, one.n_held, two.n_held) == (5 * MIB, 3 * MIB, 2 * MIB)
        new.take(4 * MIB, one, two)
        assert (budget.n_held, one.n_held, two.n_held) == (4 * MIB, 0, 0)
    assert budget.n_held == 0


def test_all_clients_share_the_budget() -> None:
    budget = RequestsBudget(4, 8)
    with (
        budget.reservation("a") as a,
        budget.reservation("b") as b,
        budget.reservation("c") as c,
    ):
        a.take(4 * MIB)
        b.take(3 * MIB)
        with pytest.raises(OverloadedError, match=r"7.* MiB.*8.* MiB.*--requests-ram") as caught:
            c.take(2 * MIB)
        assert not isinstance(caught.value, ClientLimitError)
        c.take(MIB)


@pytest.mark.parametrize("n_mib", [8, 100])
def test_what_can_never_fit_is_no_matter_of_time(n_mib: int) -> None:
    budget = RequestsBudget(4 if n_mib == 100 else 100, n_mib)
    with budget.reservation("a") as one, pytest.raises(RequestError, match="--request-ram"):
        one.take(4 * MIB + 1)


class Recorded(RequestsBudget):
    """A budget that counts reservations. The last one made is `made[-1]`."""

    made: list[Recorded] = []  # noqa: RUF012

    def __init__(self, n_mib_each: int, n_mib: int) -> None:
        super().__init__(n_mib_each, n_mib)
        self.n_taken = 0
        self.made.append(self)

    def take(self, reservation: Reservation, cost: int, *instead_of: Reservation) -> None:
        super().take(reservation, cost, *instead_of)
        self.n_taken += 1

    def wait_until(self, check: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not check():
            assert time.monotonic() < deadline, self.n_held
            time.sleep(0.002)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    monkeypatch.setattr(Recorded, "made", [])
    monkeypatch.setattr(state, "RequestsBudget", Recorded)
    return Recorded.made


@pytest.mark.parametrize(("holder", "status"), [("127.0.0.1", 429), ("other", 503)])
def test_a_request_that_does_not_fit_now_may_try_again(
    made: list[Recorded], holder: str, status: int
) -> None:
    config = ServerConfig(port=0, request_ram=1, requests_ram=2)
    with running(config=config) as server:
        (budget,) = made
        with budget.reservation("third") as third, budget.reservation(holder) as held:
            third.take(MIB)
            held.take(MIB)
            reply = server.post("/completion", {"prompt": "abc", "n_predict": 1})
            assert reply.status == status
            assert int(reply.headers["retry-after"]) > 0
            assert "--requests-ram" in reply.error["message"]
        server.ok("/completion", prompt="abc", n_predict=1)


def test_requests_of_all_ends_free_their_memory(made: list[Recorded]) -> None:
    with running() as server:
        (budget,) = made
        ends: list[tuple[str, dict[str, Any], int]] = [
            ("/completion", {"prompt": "abc"}, 200),
            ("/completion", {"prompt": "abc", "stream": True}, 200),
            ("/completion", {"prompt": ["a"] * 100}, 400),
            ("/completion", {"prompt": "abc", "grammar": 'root ::= "a"'}, 200),
            ("/v1/responses", {"input": "abc", "max_output_tokens": 16}, 200),
        ]
        for n_taken, (path, body, status) in enumerate(ends, 1):
            reply = server.post(path, {"n_predict": 4} | body if path == "/completion" else body)
            assert reply.status == status, reply.raw
            budget.wait_until(lambda: budget.n_held == 0)
            assert budget.n_taken == 2 * n_taken, "for its body, and for its texts"


def test_all_of_a_body_counts(made: list[Recorded]) -> None:
    """A waiting chat keeps the options of its template."""
    config = ServerConfig(port=0, request_ram=1, requests_ram=2)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    with running(config=config) as server:
        assert server.post("/v1/chat/completions", body).status == 200
        body["chat_template_kwargs"] = {"list": [[]] * 10_000}
        assert server.post("/v1/chat/completions", body).status == 400


def test_a_client_that_disconnects_frees_its_memory(made: list[Recorded]) -> None:
    with running(lambda: make_model(FakeContext(20_000))) as server:
        (budget,) = made
        with closing(server.connect()) as connection:
            body = b'{"prompt": "abc", "ignore_eos": true, "stream": true}'
            connection.request("POST", "/completion", body)
            assert connection.getresponse().status == 200
            assert budget.n_held > MIB
        budget.wait_until(lambda: budget.n_held == 0)


def test_vectors_are_reserved(made: list[Recorded]) -> None:
    config = ServerConfig(port=0, request_ram=1, requests_ram=2)
    with running(lambda: make_embedder(n_out=1 << 16), config) as server:  # a vector: 256 KiB
        (budget,) = made
        reply = server.post("/v1/embeddings", {"input": ["a"] * 5})
        assert reply.status == 400
        assert "1.00 MiB" in reply.error["message"]
        with budget.reservation("b") as b, budget.reservation("c") as c:
            b.take(MIB)
            c.take(MIB)
            reply = server.post("/v1/embeddings", {"input": ["a"]})
            assert reply.status == 503
            assert int(reply.headers["retry-after"]) > 0
        server.ok("/v1/embeddings", input=["a"])
        budget.wait_until(lambda: budget.n_held == 0)


def test_texts_of_embeddings_count_though_they_are_cut(made: list[Recorded]) -> None:
    config = ServerConfig(port=0, request_ram=1, requests_ram=2)
    with running(make_embedder, config) as server:
        reply = server.post("/v1/embeddings", {"input": "a" * 300_000, "truncate": True})
    assert reply.status == 400
    assert "the request may take 1." in reply.error["message"]


def test_a_reply_of_tokens_counts_until_it_is_read(made: list[Recorded]) -> None:
    body = {"content": "ab" * 250_000, "with_pieces": True}
    raw = json.dumps(body).encode()
    head = f"POST /tokenize HTTP/1.0\r\nContent-Length: {len(raw)}\r\n\r\n"
    with running() as server:
        (budget,) = made
        n_reply = len(server.post("/tokenize", body).raw)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(head.encode() + raw)
            budget.wait_until(lambda: budget.n_held >= 2 * n_reply)
        budget.wait_until(lambda: budget.n_held == 0)
    config = ServerConfig(port=0, request_ram=1, requests_ram=2)
    with running(config=config) as server:
        assert server.post("/tokenize", body).status == 400
        server.ok("/tokenize", content="a")
        server.ok("/detokenize", tokens=[5])
