"""The engine over a pipeline of two devices: steps overlap, and what fails in flight is told to
those whose tokens it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_context import WAIT_S, Recorder, job
from tiny_models import Tiny, write_model
from watched_devices import Watch

from lamella.base.errors import BackendError, CancelledError
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement
from lamella.model.vocab import load_vocab
from lamella.runtime.engine.engine import Engine
from lamella.sched.backend import Device

N_UBATCH = 8
PROMPT = [3 + i % 40 for i in range(6 * N_UBATCH)]
OTHER = [9, 8, 7, 6, 5]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(Tiny(arch="llama", n_layer=3), path)
    return path


@contextmanager
def running(path: Path, devices: Sequence[Device], n_ctx: int = 512) -> Iterator[Engine]:
    """An engine over the devices; in the end all pages are free."""
    model = load_model(path, Placement(cpu=CpuDevice(1), devices=tuple(devices)))
    params = ContextParams(n_ctx=n_ctx, n_ubatch=N_UBATCH)
    with Context(model, params) as context:
        assert bool(context.no_pipeline) is (len(devices) < 2)
        engine = Engine(context, load_vocab(model.metadata))
        engine.start()
        try:
            yield engine
        finally:
            engine.close()
            assert context.pool.n_free == context.pool.n_pages
    model.free()


@contextmanager
def watched(path: Path, n_ctx: int = 512) -> Iterator[tuple[Watch, Engine]]:
    watch = Watch()
    with running(path, [watch.device("SIM0"), watch.device("SIM1")], n_ctx) as engine:
        yield watch, engine


def generate(
    engine: Engine, prompt: Sequence[int], n_predict: int = 6, *, cache_prompt: bool = True
) -> Recorder:
    """Submit a job; its sink."""
    sink = Recorder()
    how = {"ignore_eos": True, "cache_prompt": cache_prompt}
    engine.submit(job(sink, *prompt, n_predict=n_predict, n_probs=0, **how))
    return sink


def alone(path: Path, prompt: Sequence[int]) -> list[int]:
    """What is generated on one device."""
    with running(path, [SimDevice("SIM0")]) as engine:
        sink = generate(engine, prompt)
        sink.result()
        return sink.tokens


class Hold:
    """SIM1 stops before its n-th ubatch until it is let go, then fails if it is to."""

    def __init__(self, watch: Watch, n: int, fails: bool) -> None:
        self.watch, self.n, self.fails = watch, n, fails
        self.reached, self.let_go = threading.Event(), threading.Event()
        watch.on_begin = self

    def __call__(self, name: str, n: int) -> None:
        if (name, n) == ("SIM1", self.n):
            self.reached.set()
            assert self.let_go.wait(WAIT_S)
            if self.fails:
                raise RuntimeError("the device is on fire")


def test_steps_of_a_prompt_overlap(path: Path) -> None:
    expected = alone(path, PROMPT)
    with watched(path) as (watch, engine):

        def hold(name: str, n: int) -> None:
            if name == "SIM1" and n < len(PROMPT) // N_UBATCH:
                assert watch.wait_for("SIM0", "begin", n + 1), f"SIM0 waits for SIM1's ubatch {n}"

        generate(engine, PROMPT).result()  # builds the graphs
        watch.clear()
        watch.on_begin = hold
        sink = generate(engine, PROMPT, cache_prompt=False)
        sink.result()
        assert sink.tokens == expected
        assert watch.is_before(("SIM0", "begin", 3), ("SIM1", "end", 2))


def test_jobs_side_by_side_get_what_they_get_alone(path: Path) -> None:
    prompts = [PROMPT, OTHER, PROMPT[5:], PROMPT[:17], OTHER * 5, PROMPT[20:]]
    expected = [alone(path, prompt) for prompt in prompts]
    for n_ctx in (512, 96):  # the second is not enough for all: some are preempted
        with watched(path, n_ctx) as (_, engine):
            sinks = [generate(engine, prompt) for prompt in prompts]
            for sink in sinks:
                sink.result()
            assert [sink.tokens for sink in sinks] == expected


def test_a_failure_in_flight_is_told_to_whose_it_is(path: Path) -> None:
    """It fails at its first chunk, and is told so at a later one; who waits is not concerned."""
    expected = alone(path, OTHER)
    with watched(path) as (watch, engine):
        engine._runner._n_parallel = 1  # the other one waits
        hold = Hold(watch, 1, fails=True)
        sink = generate(engine, PROMPT)
        other = generate(engine, OTHER)
        assert hold.reached.wait(WAIT_S)
        hold.let_go.set()
        with pytest.raises(BackendError, match="on fire"):
            raise sink.error()
        other.result()
        assert other.tokens == expected


@pytest.mark.parametrize("fails", [False, True])
def test_cancelling_what_is_in_flight(path: Path, fails: bool) -> None:
    """The next job gets neither its pages too early nor its error, nor what it left undone."""
    expected = alone(path, OTHER)
    with watched(path) as (watch, engine):
        engine._runner._n_parallel = 1
        hold = Hold(watch, 1, fails)
        sink = Recorder()
        ticket = engine.submit(job(sink, *PROMPT, n_probs=0))
        assert hold.reached.wait(WAIT_S)
        engine.cancel(ticket)
        other = generate(engine, OTHER)
        hold.let_go.set()
        assert isinstance(sink.error(), CancelledError)
        other.result()
        assert other.tokens == expected
        watch.on_begin = lambda name, n: None
        again = generate(engine, PROMPT)
        assert (again.result().n_cached == 0) == fails
        assert again.tokens == alone(path, PROMPT)


def test_who_copies_a_page_gets_no_error_of_what_is_in_flight(path: Path) -> None:
    """It waits for what may be writing the page; what fails then is told to whose it is."""
    long = [3 + i * 7 % 50 for i in range(12 * N_UBATCH)]
    expected = {job: alone(path, job) for job in (tuple(long), (*OTHER, 11, 12))}
    with watched(path) as (watch, engine):
        generate(engine, OTHER).result()  # leaves a page that is not full
        watch.clear()
        hold = Hold(watch, 2, fails=True)
        sink = generate(engine, long)
        assert hold.reached.wait(WAIT_S)
        other = generate(engine, (*OTHER, 11, 12))
        hold.let_go.set()
        assert other.result().n_cached >= len(OTHER)
        assert other.tokens == expected[*OTHER, 11, 12]
        assert "on fire" in str(sink.error())
        assert sink.tokens == []
        again = generate(engine, long)
        assert again.result().n_cached == 0
        assert again.tokens == expected[tuple(long)]


def test_a_prompt_alone_that_fails_has_not_ended_well(path: Path) -> None:
    """Without a token to predict nobody reads an output: what is in flight may fail still."""
    with watched(path) as (watch, engine):
        hold = Hold(watch, len(PROMPT) // N_UBATCH, fails=True)
        hold.let_go.set()
        with pytest.raises(BackendError, match="on fire"):
            raise generate(engine, PROMPT, n_predict=0).error()
        assert generate(engine, PROMPT, n_predict=0).result().n_predicted == 0


def test_calls_see_no_failure_of_others(path: Path) -> None:
    """What is in flight is waited for, and its failure told to its job, before a call."""
    with watched(path) as (watch, engine):
        hold = Hold(watch, 2, fails=True)
        sink = generate(engine, PROMPT)
        assert hold.reached.wait(WAIT_S)
        threading.Timer(0.05, hold.let_go.set).start()
        engine.call(Context.synchronize)
        with pytest.raises(BackendError, match="on fire"):
            raise sink.error()


def test_preempting_what_is_in_flight(path: Path) -> None:
    """A prompt gives its pages back while its first chunks fail: it is computed again."""
    expected = [alone(path, p) for p in (OTHER, PROMPT)]
    with watched(path) as (watch, engine):
        hold = Hold(watch, 1, fails=True)
        sink = generate(engine, PROMPT)
        assert hold.reached.wait(WAIT_S)
        hold.let_go.set()
        # a call that wants the whole pool: whoever is under way has to leave
        engine.call(lambda context: None, n_tokens=512)
        error = sink.wait()
        assert isinstance(error, BackendError)
        sinks = [generate(engine, p) for p in (OTHER, PROMPT)]
        for s in sinks:
            s.result()
        assert [s.tokens for s in sinks] == expected


def test_closing_the_engine_while_work_is_in_flight(path: Path) -> None:
    for fails in (False, True):
        with watched(path) as (watch, engine):
            hold = Hold(watch, 2, fails)
            sink = generate(engine, PROMPT)
            assert hold.reached.wait(WAIT_S)
            hold.let_go.set()
            engine.close()
            assert isinstance(sink.error(), CancelledError | BackendError)
