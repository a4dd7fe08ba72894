"""The embedder: many requests in turn, cancelled and failed ones, and its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from lamella.base.errors import (
    BackendError,
    ClientLimitError,
    ClosedError,
    ContextSizeError,
    OverloadedError,
    RequestError,
)
from lamella.model.embed_context import EmbedContext
from lamella.model.pooling import Pooling
from lamella.runtime.embedder import Embedder
from lamella.runtime.params import EngineParams

F32Array = npt.NDArray[np.float32]
WAIT_S = 10


class FakeContext:
    """Vectors are the sums of texts. Each step waits for `gate`."""

    n_ctx_seq, n_out, n_seq_max, n_step = 8, 1, 4, 8
    n_graphs_built = 0
    pooling = Pooling.MEAN

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.steps: list[list[list[int]]] = []
        self.error: Exception | None = None

    def check(self, text: Sequence[int], what: str) -> None:
        if not text:
            raise RequestError(f"{what} has no tokens")
        if len(text) > self.n_ctx_seq:
            raise ContextSizeError(len(text), self.n_ctx_seq)

    n_fitting = EmbedContext.n_fitting

    def lower_priority(self) -> None:
        pass

    def embed(self, texts: Sequence[npt.NDArray[np.int32]]) -> list[F32Array]:
        assert self.gate.acquire(timeout=WAIT_S)
        self.steps.append([text.tolist() for text in texts])
        if self.error is not None:
            raise self.error
        return [np.array([text.sum()], np.float32) for text in texts]

    def open(self) -> None:
        for _ in range(1000):
            self.gate.release()


@pytest.fixture
def fake() -> FakeContext:
    return FakeContext()


@pytest.fixture
def embedder(fake: FakeContext) -> Iterator[Embedder]:
    made = Embedder(cast(EmbedContext, fake), EngineParams(max_waiting=3))
    yield made
    fake.open()
    made.close()


def sums(future: Future[list[F32Array]]) -> list[float]:
    return [float(vector[0]) for vector in future.result(WAIT_S)]


def test_vectors_are_in_the_order_of_texts(embedder: Embedder, fake: FakeContext) -> None:
    fake.open()
    embedder.start()
    assert sums(embedder.submit([[i, 1] for i in range(20)])) == [i + 1 for i in range(20)]
    assert sums(embedder.submit([[5]])) == [5]
    assert embedder.submit([]).result(WAIT_S) == []
    assert (embedder.counters.n_prompt, embedder.counters.n_tokens_max) == (41, 2)
    assert (embedder.n_running, embedder.n_waiting) == (0, 0)


def test_requests_take_turns(embedder: Embedder, fake: FakeContext) -> None:
    many = embedder.submit([[i] for i in range(100, 120)])
    one = embedder.submit([[1]])
    two = embedder.submit([[2], [3]])
    embedder.start()
    fake.gate.release()
    assert sums(one) == [1]
    fake.gate.release()
    assert sums(two) == [2, 3]
    assert fake.steps[0] == [[100], [1], [2], [101]]
    assert not many.done()
    fake.open()
    assert sums(many) == list(range(100, 120))


def test_clients_take_turns_by_tokens(fake: FakeContext) -> None:
    embedder = Embedder(cast(EmbedContext, fake), EngineParams())
    many = [embedder.submit([[i, i]] * 4, "many") for i in range(10)]
    few = embedder.submit([[1]] * 8, "few")
    fake.open()
    embedder.start()
    assert sums(few) == [1] * 8
    assert sums(many[9]) == [18] * 4
    embedder.close()
    texts = [text for step in fake.steps for text in step]
    before = texts[: max(i for i, text in enumerate(texts) if text == [1])]
    # as many tokens as the others, and one text more at most
    assert 2 * (len(before) - before.count([1])) <= before.count([1]) + 2 + 1
    assert [0, 0] in before
    assert [1, 1] in before  # two requests of one client share its part


def test_one_client_may_wait_less_than_all(fake: FakeContext) -> None:
    params = EngineParams(max_waiting=3, max_client_waiting=2)
    embedder = Embedder(cast(EmbedContext, fake), params)
    waiting = [embedder.submit([[1]], "a") for _ in range(2)]
    with pytest.raises(ClientLimitError, match="2 requests of this client wait"):
        embedder.submit([[1]], "a")
    embedder.submit([[1]], "b")
    with pytest.raises(OverloadedError, match="3 requests wait") as error:
        embedder.submit([[1]], "c")
    assert not isinstance(error.value, ClientLimitError)
    assert waiting[0].cancel()
    embedder.submit([[1]], "a")
    embedder.close()


def test_a_text_that_does_not_fit_waits_for_the_next_step(
    embedder: Embedder, fake: FakeContext
) -> None:
    future = embedder.submit([[1] * 5, [2] * 4, [3] * 8])
    fake.open()
    embedder.start()
    assert sums(future) == [5, 8, 24]
    assert [len(step) for step in fake.steps] == [1, 1, 1]


def test_a_cancelled_request_computes_no_more_texts(embedder: Embedder, fake: FakeContext) -> None:
    future = embedder.submit([[i] for i in range(12)])
    embedder.start()
    fake.gate.release()  # the first step
    other = embedder.submit([[7]])
    assert future.cancel()
    fake.open()
    assert sums(other) == [7]
    assert sum(map(len, fake.steps)) <= 4 + 4 + 1


def test_an_error_fails_its_requests_only(embedder: Embedder, fake: FakeContext) -> None:
    embedder.start()
    fake.error = BackendError("the device is lost")
    failed = embedder.submit([[1], [2], [3], [4], [5]])
    fake.gate.release()
    with pytest.raises(BackendError, match="lost"):
        failed.result(WAIT_S)
    fake.error = None
    fake.open()
    assert sums(embedder.submit([[9]])) == [9]
    assert embedder.n_waiting == 0


def test_invalid_texts_and_a_full_queue(embedder: Embedder) -> None:
    with pytest.raises(RequestError, match="text 1 has no tokens"):
        embedder.submit([[1], []])
    with pytest.raises(ContextSizeError):
        embedder.submit([[1] * 9])
    waiting = [embedder.submit([[1]]) for _ in range(3)]
    with pytest.raises(OverloadedError, match="3 requests wait"):
        embedder.submit([[1]])
    assert waiting[1].cancel()
    embedder.submit([[1]])
    with pytest.raises(OverloadedError, match="3 requests wait"):
        embedder.submit([[1]])


def test_close_fails_what_waits(embedder: Embedder, fake: FakeContext) -> None:
    running = embedder.submit([[i] for i in range(40)])
    embedder.start()
    ended = threading.Event()
    embedder.when_ended(ended.set)
    fake.gate.release()
    closing = threading.Thread(target=embedder.close)
    closing.start()
    fake.open()
    closing.join(WAIT_S)
    assert ended.wait(WAIT_S)
    with pytest.raises(ClosedError):
        running.result(WAIT_S)
    with pytest.raises(ClosedError):
        embedder.submit([[1]])
    embedder.close()
    with pytest.raises(ClosedError):
        embedder.start()


def test_many_threads(embedder: Embedder, fake: FakeContext) -> None:
    fake.open()
    embedder._max_waiting = 100
    embedder.start()
    futures: list[Future[Any]] = []

    def client(i: int) -> None:
        for j in range(10):
            futures.append(embedder.submit([[i, j], [i]]))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done, rest = wait_for(futures, WAIT_S)
    assert not rest
    results = sorted(tuple(sums(future)) for future in done)
    assert results == sorted((i + j, i) for i in range(8) for j in range(10))
