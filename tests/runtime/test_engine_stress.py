"""Random runs of the engine with small pools, cancellations, stop words and faults."""

from __future__ import annotations

import queue
import random
from dataclasses import dataclass

import pytest
from fake_context import FakeContext, Recorder, expected, job, make_engine, sampling

from lamella.base.errors import BackendError, CancelledError
from lamella.runtime.engine.job import Result, StopType
from lamella.runtime.engine.ticket import Ticket


@dataclass
class Case:
    prompt: tuple[int, ...]
    seed: int
    n_predict: int
    n_max_sink: int  # tokens after which the sink stops the job
    sink: Recorder
    ticket: Ticket | None = None

    def check(self, n_ctx: int) -> None:
        """Check that all tokens and the end are right."""
        end = self.sink.wait()
        n_max = min(self.n_predict, n_ctx - len(self.prompt), self.n_max_sink)
        tokens = expected(self.prompt, sampling(self.seed), n_max)
        if not isinstance(end, Result):
            assert isinstance(end, CancelledError | BackendError)
            assert self.sink.tokens == tokens[: len(self.sink.tokens)]
            return
        assert self.sink.tokens == tokens
        if end.stop_type == StopType.EOS:
            assert len(tokens) < n_max
            assert end.n_predicted == len(tokens) + 1
        else:
            assert len(tokens) == n_max == end.n_predicted
            assert (end.stop_type == StopType.WORD) == (n_max == self.n_max_sink)


def make_case(rng: random.Random, n_ctx: int) -> Case:
    """A random case. Two of three share a prefix."""
    n_prompt = min(rng.choice([1, 3, 8, 20, 40]), n_ctx - 1)
    n_max_sink = rng.choice([3, 10, 1000])
    n_shared = rng.choice([0, rng.randrange(n_prompt), n_prompt])
    shared_rng = random.Random(1)
    return Case(
        prompt=tuple((shared_rng if i < n_shared else rng).randint(3, 30) for i in range(n_prompt)),
        seed=rng.randint(0, 99),
        n_predict=rng.choice([1, 5, 25, 60]),
        n_max_sink=n_max_sink,
        sink=Recorder(lambda n: n < n_max_sink),
    )


@pytest.mark.parametrize("seed", range(12))
def test_random_runs_give_the_right_tokens_and_lose_no_pages(seed: int) -> None:
    rng = random.Random(seed)
    n_ctx = rng.choice([24, 64, 96])
    context = FakeContext(n_ctx, n_ubatch=rng.choice([1, 5, 16]), page_size=rng.choice([1, 4, 8]))
    engine = make_engine(context, n_parallel=rng.choice([1, 3, 6]))
    cases = [make_case(rng, n_ctx) for _ in range(25)]
    late: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in cases[10:]:
        late.put(case)

    def on_decode(step: int) -> None:
        assert sum(n for _, _, n, _ in context.steps[-1]) <= max(context.n_ubatch, 7)
        if rng.random() < 0.3:
            submit_late()
        if rng.random() < 0.03:
            ticket = rng.choice(cases).ticket
            if ticket is not None:
                engine.cancel(ticket)
        if rng.random() < 0.005:
            raise BackendError("the device is gone")

    def submit(case: Case) -> None:
        new = job(case.sink, *case.prompt, seed=case.seed, n_predict=case.n_predict)
        case.ticket = engine.submit(new)

    def submit_late() -> bool:
        try:
            submit(late.get_nowait())
        except queue.Empty:
            return False
        return True

    context.on_decode = on_decode
    for case in cases[:10]:
        submit(case)
    engine.start()
    for case in cases[:10]:
        case.check(n_ctx)
    while submit_late():
        pass
    for case in cases:
        case.check(n_ctx)
    engine.close()
    assert context.pool.n_free == context.pool.n_pages
    assert (engine.n_running, engine.n_waiting) == (0, 0)
