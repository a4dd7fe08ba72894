"""Paused jobs: they get no tokens, and leave when others need their places or pages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fake_context import WAIT_S, FakeContext, Recorder, job, make_engine

from lamella.base.errors import CancelledError
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.ticket import Ticket

N_FIRST = 5  # tokens before the pause
N_PREDICT = 40


class Reader:
    """A job that pauses itself after some tokens."""

    def __init__(self, engine: Engine, seed: int = 1) -> None:
        self.engine = engine
        self.sink = Recorder(self._on_token)
        self.is_paused = threading.Event()
        self.ticket: Ticket = engine.submit(
            job(self.sink, seed=seed, n_predict=N_PREDICT, ignore_eos=True)
        )

    def _on_token(self, n: int) -> bool:
        if n == N_FIRST:
            self.engine.pause(self.ticket)
            self.is_paused.set()
        return True

    def wait_for_pause(self) -> None:
        assert self.is_paused.wait(WAIT_S)

    def resume(self) -> list[int]:
        """All tokens of the job."""
        self.engine.resume(self.ticket)
        assert self.sink.result().n_predicted == N_PREDICT
        return self.sink.tokens


@contextmanager
def started(
    context: FakeContext, n_parallel: int = 4, n_readers: int = 1
) -> Iterator[list[Reader]]:
    """An engine whose jobs have paused."""
    engine = make_engine(context, n_parallel)
    readers = [Reader(engine, seed) for seed in range(1, n_readers + 1)]
    engine.start()
    for reader in readers:
        reader.wait_for_pause()
    yield readers
    engine.close()


def run(engine: Engine, *prompt: int, n_predict: int = N_PREDICT) -> list[int]:
    """The tokens of another job, up to its end."""
    sink = Recorder()
    engine.submit(job(sink, *prompt, seed=1, n_predict=n_predict, ignore_eos=True))
    sink.result()
    return sink.tokens


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    """The tokens of the job without a pause."""
    engine = make_engine(FakeContext())
    engine.start()
    found = run(engine)
    engine.close()
    return found


@pytest.mark.parametrize("aside", [False, True])
def test_other_jobs_go_on_and_a_paused_one_continues_with_the_same_tokens(
    aside: bool, tokens: list[int]
) -> None:
    with started(FakeContext(aside=aside)) as [reader]:
        assert run(reader.engine) == tokens
        assert len(reader.sink.tokens) == N_FIRST + aside  # the step in flight has one more
        assert reader.engine.n_running == 1
        assert reader.resume() == tokens


def test_an_engine_sleeps_while_all_jobs_are_paused() -> None:
    with started(FakeContext(), n_readers=3) as [reader, *_]:
        n_steps: list[None] = []
        reader.engine.when_stepped(lambda: n_steps.append(None))
        time.sleep(0.1)
        assert len(n_steps) <= 2
        assert reader.engine.call(lambda context: context.n_vocab) > 0


def test_a_paused_job_leaves_its_place_to_a_waiting_one(tokens: list[int]) -> None:
    with started(FakeContext(), n_parallel=1) as [reader]:
        assert run(reader.engine) == tokens
        assert (reader.engine.n_running, reader.engine.n_waiting) == (0, 1)
        assert run(reader.engine) == tokens  # the one that waits does not hold up others
        assert reader.resume() == tokens


def test_a_paused_job_leaves_its_pages_to_a_waiting_one(tokens: list[int]) -> None:
    with started(FakeContext(48)) as [reader]:
        assert len(run(reader.engine, *[5] * 44, n_predict=3)) == 3
        assert reader.resume() == tokens


def test_a_paused_job_leaves_its_pages_to_a_growing_one(tokens: list[int]) -> None:
    with started(FakeContext(48)) as [reader]:
        assert run(reader.engine) == tokens
        assert reader.engine.n_waiting == 1
        assert reader.resume() == tokens


def test_the_youngest_paused_job_leaves() -> None:
    with started(FakeContext(), n_parallel=2, n_readers=2) as [oldest, youngest]:
        run(oldest.engine)
        assert oldest.ticket.seq is not None and youngest.ticket.seq is None
        assert len(oldest.resume()) == len(youngest.resume()) == N_PREDICT


@pytest.mark.parametrize("n_parallel", [4, 1], ids=["running", "waiting"])
def test_a_paused_job_can_be_cancelled(n_parallel: int) -> None:
    with started(FakeContext(), n_parallel) as [reader]:
        if n_parallel == 1:
            run(reader.engine)  # takes its place
        reader.engine.cancel(reader.ticket)
        assert isinstance(reader.sink.error(), CancelledError)
        reader.engine.resume(reader.ticket)
        engine = reader.engine
        assert engine.call(lambda _: engine.n_running + engine.n_waiting) == 0


def test_an_engine_with_paused_jobs_can_be_closed() -> None:
    with started(FakeContext(), n_readers=2) as readers:
        pass
    assert all(isinstance(reader.sink.error(), CancelledError) for reader in readers)


def test_a_job_that_resumes_at_once_goes_on(tokens: list[int]) -> None:
    with started(FakeContext()) as [reader]:
        for _ in range(50):
            reader.engine.pause(reader.ticket)
            reader.engine.resume(reader.ticket)
        assert reader.resume() == tokens
