"""Clients share the engine: none waits for all jobs of another, and texts stay the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from fake_context import (
    WAIT_S,
    FakeContext,
    Recorder,
    expected,
    job,
    make_engine,
    running,
    sampling,
)

from lamella.base.errors import ClientLimitError
from lamella.model.layer_memory import Window
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.job import Job
from lamella.runtime.engine.shares import Owner


def owned(
    sink: Recorder,
    client: str,
    request: int = 0,
    *prompt: int,
    n: int = 4,
    seed: int = 1,
    ignore_eos: bool = True,
) -> Job:
    made = job(sink, *(prompt or (7, 8, 9)), seed=seed, n_predict=n, ignore_eos=ignore_eos)
    return replace(made, owner=Owner(client, request))


def order_of_ends(
    engine: Engine, jobs: Sequence[tuple[str, Callable[[Recorder], Job]]]
) -> list[str]:
    """Submit jobs, then start the engine. Return their names in the order of their ends."""
    found: list[str] = []

    class Named(Recorder):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def finished(self, result: object) -> None:
            found.append(self.name)
            super().finished(result)  # type: ignore[arg-type]

    sinks = []
    for name, make in jobs:
        sinks.append(Named(name))
        engine.submit(make(sinks[-1]))
    engine.start()
    for sink in sinks:
        sink.result()
    engine.close()
    return found


@pytest.mark.parametrize(("client", "request_"), [("b", 1), ("a", 2)])
@pytest.mark.parametrize("n_parallel", [1, 2, 4])
def test_a_small_request_does_not_wait_for_all_prompts_of_a_large_one(
    client: str, request_: int, n_parallel: int
) -> None:
    jobs: list[tuple[str, Callable[[Recorder], Job]]] = [
        ("large", lambda sink: owned(sink, "a", 1)) for _ in range(50)
    ]
    jobs.append(("small", lambda sink: owned(sink, client, request_)))
    ends = order_of_ends(make_engine(FakeContext(), n_parallel), jobs)
    assert ends.index("small") <= n_parallel


@pytest.mark.parametrize(("client", "request_"), [("b", 1), ("a", 2)])
def test_a_small_request_does_not_wait_for_long_texts(client: str, request_: int) -> None:
    context, arrived, is_open = FakeContext(2048), threading.Event(), threading.Event()
    long = [Recorder() for _ in range(4)]
    small = Recorder()
    n_long: list[int] = []

    def decode(step: int) -> None:
        if step == 20:
            assert is_open.wait(WAIT_S)
            engine.submit(owned(small, client, request_))
            arrived.set()
        if small.ends and not n_long:
            n_long.extend(len(sink.tokens) for sink in long)

    context.on_decode = decode
    jobs = [owned(sink, "a", 1, 7, 8 + i, n=300, seed=i) for i, sink in enumerate(long)]
    with running(context, *jobs) as engine:
        is_open.set()
        assert arrived.wait(WAIT_S)
        small.result()
        for i, sink in enumerate(long):
            assert sink.result().n_predicted == 300
            assert sink.tokens == expected_of(long, i)
    assert max(n_long) < 40  # it took the place of one of them


def expected_of(sinks: Sequence[Recorder], i: int) -> list[int]:
    """The tokens of the long text `i`, alone on an engine."""
    alone = Recorder()
    with running(FakeContext(2048), owned(alone, "", 0, 7, 8 + i, n=300, seed=i)):
        alone.result()
    return alone.tokens


def test_a_long_prompt_shares_steps_with_prompts_of_others() -> None:
    context, ends = FakeContext(n_ubatch=16), list[int]()
    long = Recorder()

    def token(n: int) -> bool:
        ends.append(len(context.steps))
        return True

    short = Recorder(token)
    jobs = (
        owned(long, "a", 1, *[5] * 400, n=1),
        owned(short, "b", 1, *[6] * 16, n=1),
    )
    with running(context, *jobs):
        short.result()
        long.result()
    assert ends == [2] and len(context.steps) == 26


@pytest.mark.parametrize("windows", [(), (Window(6),)])
@pytest.mark.parametrize("n_ctx", [96, 160, 512])
def test_texts_are_the_same_whoever_else_is_served(n_ctx: int, windows: Sequence[Window]) -> None:
    context = FakeContext(n_ctx, windows=windows)
    sinks = [Recorder() for _ in range(24)]
    prompts = [[5 + i % 4] * (1 + i % 11) for i in range(len(sinks))]
    clients = ["a"] * 12 + ["b", "c", "d"] * 4
    jobs = [
        owned(sink, clients[i], i // 3, *prompts[i], n=20, seed=i, ignore_eos=False)
        for i, sink in enumerate(sinks)
    ]
    engine = make_engine(context)
    for each in jobs[:12]:
        engine.submit(each)
    rest = iter(jobs[12:])

    def decode(step: int) -> None:
        if step % 3 == 0 and (more := next(rest, None)) is not None:
            engine.submit(more)

    context.on_decode = decode
    engine.start()
    for i, sink in enumerate(sinks):
        sink.result()
        assert sink.tokens == expected(prompts[i], sampling(i), 20)
    engine.close()
    assert context.pool.n_free == context.pool.n_pages


def test_a_client_has_a_limit_of_its_own() -> None:
    engine = make_engine(FakeContext(), n_parallel=1, max_client_waiting=2)
    for _ in range(2):
        engine.submit(owned(Recorder(), "a"))
    with pytest.raises(ClientLimitError, match="2 generations of this client are waiting"):
        engine.submit(owned(Recorder(), "a", 7))
    engine.submit(owned(Recorder(), "b"))
    with pytest.raises(ClientLimitError):
        engine.check_room("b", 2)
    engine.check_room("b", 1)
    engine.close()
