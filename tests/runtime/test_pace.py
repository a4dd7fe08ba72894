"""The prompt tokens of a step: what decoding sequences can bear, found by the times of steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_context import Clock, FakeContext, Recorder, job, make_engine

from lamella.model.graphs import bucket
from lamella.runtime.engine.pace import N_STEPS_VALID, Pace
from lamella.runtime.engine.runner import Runner

N_UBATCH = 512

Machine = Callable[[int], float]  # milliseconds of a step of this many tokens, padding included


def machine(fixed: float, each: float) -> Machine:
    return lambda n: fixed + each * n


def simulated(pace: Pace, ms_of: Machine, n_decoding: int, n_steps: int) -> list[tuple[int, float]]:
    """Prompt tokens and milliseconds of each step, beside prompts without an end."""
    found = []
    for _ in range(n_steps):
        n = pace.n_prompt_tokens(n_decoding)
        ms = ms_of(bucket(n_decoding + n, N_UBATCH))
        pace.measured(n_decoding + n, n_decoding, ms)
        found.append((n, ms))
    return found


@pytest.mark.parametrize("fixed", [0.0, 1.0, 20.0, 500.0])
@pytest.mark.parametrize("n_decoding", [1, 5, 8, 100])
def test_a_step_takes_at_most_twice_as_long_as_one_without_a_prompt(
    fixed: float, n_decoding: int
) -> None:
    ms_of = machine(fixed, 0.5)
    steps = simulated(Pace(N_UBATCH), ms_of, n_decoding, 50)
    alone = ms_of(bucket(n_decoding, N_UBATCH))
    n_least = bucket(n_decoding + max(n_decoding, 4), N_UBATCH)
    assert steps[0] == (0, alone)  # measured first
    assert all(n > 0 for n, _ in steps[1:])
    limit = max(2 * alone, 1.1 * ms_of(n_least))
    slow = [ms for _, ms in steps if ms > limit]
    assert len(slow) <= 1  # one size is tried that is too large
    n, _ = steps[-1]
    size = n_decoding + n  # the size is filled, and the next one would be too slow
    assert size == bucket(size, N_UBATCH)
    assert size == N_UBATCH or ms_of(2 * size) > limit


def test_a_larger_size_that_takes_little_longer_than_the_least_one_is_taken() -> None:
    # as beside a deep prompt: the first token of a prompt is slow, further ones are not
    pace = Pace(N_UBATCH)
    steps = simulated(pace, lambda n: 4.0 if n <= 8 else 10 + 0.01 * n, 8, 50)
    assert steps[-1] == (64 - 8, 10.64)


@pytest.mark.parametrize(("max_itl", "size"), [(10, 16), (40, 64), (1000, 512), (1, 16), (-1, 512)])
def test_a_limit_in_milliseconds(max_itl: int, size: int) -> None:
    steps = simulated(Pace(N_UBATCH, max_itl), machine(2.0, 0.5), 8, 50)
    assert 8 + steps[-1][0] == size
    assert all(n > 0 for n, _ in steps)


def test_nothing_waits_without_decoding_sequences() -> None:
    assert Pace(N_UBATCH).n_prompt_tokens(0) == N_UBATCH
    assert Pace(8).n_prompt_tokens(8) == 0  # measured first
    assert Pace(8, -1).n_prompt_tokens(8) == 1
    assert Pace(8, -1).n_prompt_tokens(100) == 1


def test_times_that_are_not_measured_do_not_stop_prompts() -> None:
    # as when each step builds a graph
    pace = Pace(N_UBATCH)
    assert [pace.n_prompt_tokens(8) for _ in range(4)] == [0, 8, 0, 8]


def test_one_slow_step_is_forgotten() -> None:
    pace, ms_of = Pace(N_UBATCH), machine(10.0, 0.1)
    usual = simulated(pace, ms_of, 8, 30)[-1]
    n, _ = usual
    pace.measured(8 + n, 8, 10_000.0)
    assert simulated(pace, ms_of, 8, 30)[-1] == usual


def test_a_size_that_became_slow_is_left_and_later_tried_again() -> None:
    pace, fast = Pace(N_UBATCH), machine(10.0, 0.1)
    n_fast, _ = simulated(pace, fast, 8, 30)[-1]

    def slow(n: int) -> float:
        return fast(n) * (1 if n <= 16 else 8)  # as at a great depth

    n_slow, _ = simulated(pace, slow, 8, 30)[-1]
    assert 0 < n_slow < n_fast
    steps = simulated(pace, fast, 8, 2 * N_STEPS_VALID)
    assert n_fast in [n for n, _ in steps]


def test_times_of_a_size_depend_on_its_outputs() -> None:
    pace = Pace(N_UBATCH)
    for n_decoding, ms in ((8, 10.0), (16, 20.0)):
        pace.measured(n_decoding, n_decoding, ms)
        pace.measured(2 * n_decoding, n_decoding, ms)
    pace.measured(32, 8, 30.0)  # too slow beside 8 sequences, not known beside 16
    assert pace.n_prompt_tokens(8) == 8
    pace.measured(64, 16, 30.0)
    pace.measured(128, 16, 50.0)
    assert pace.n_prompt_tokens(16) == 64 - 16


def test_the_engine_takes_fewer_prompt_tokens_beside_a_decoding_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, context = Clock(), FakeContext(n_ubatch=64)
    monkeypatch.setattr("lamella.runtime.engine.runner.time", clock)

    def take_time(step: int) -> None:
        n_tokens = sum(n for _, _, n, _ in context.steps[-1])
        clock.wait(1e-3 * (10 + bucket(n_tokens, 64)))

    context.on_decode = take_time
    engine = make_engine(context, max_itl=0)
    first, second = Recorder(), Recorder()
    engine.submit(job(first, n_predict=60, ignore_eos=True))
    runner: Runner = engine._runner
    for _ in range(3):
        runner.step()
    engine.submit(job(second, *range(3, 30), *range(3, 30), *range(3, 30), n_predict=2))
    while not second.ended.is_set():
        runner.step()
    sizes = [sum(n for _, _, n, _ in step) for step in context.steps]
    # 11 ms alone, 18 ms with a size of 8; that of 16 was tried
    assert sorted(sizes[3:])[-2:] == [8, 16]
    engine.close()
