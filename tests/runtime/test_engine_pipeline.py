"""The engine over a pipeline of two devices: steps overlap, and errors of work in flight go to the
jobs in flight."""

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
from lamella.runtime.params import EngineParams
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
    """An engine over the devices. Asserts at the end that all pages are free."""
    model = load_model(path, Placement(cpu=CpuDevice(1), devices=tuple(devices)))
    params = ContextParams(n_ctx=n_ctx, n_ubatch=N_UBATCH)
    with Context(model, params) as context:
        assert bool(context.no_pipeline) is (len(devices) < 2)
        engine = Engine(context, load_vocab(model.metadata), n_parallel=4, params=EngineParams())
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
    """Submit a job. Return its sink."""
    sink = Recorder()
    how = {"ignore_eos": True, "cache_prompt": cache_prompt}
    engine.submit(job(sink, *prompt, n_predict=n_predict, n_probs=0, **how))
    return sink


def alone(path: Path, prompt: Sequence[int]) -> list[int]:
    """The tokens generated on one device."""
    with running(path, [SimDevice("SIM0")]) as engine:
        sink = generate(engine, prompt)
        sink.result()
        return sink.tokens


class Hold:
    """Blocks SIM1 before its n-th ubatch until `release` is set, then fails if `fails`."""

    def __init__(self, watch: Watch, n: int, fails: bool) -> None:
        self.watch, self.n, self.fails = watch, n, fails
        self.reached, self.release = threading.Event(), threading.Event()
        watch.on_begin = self

    def __call__(self, name: str, n: int) -> None:
        if (name, n) == ("SIM1", self.n):
            self.reached.set()
            assert self.release.wait(WAIT_S)
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


def test_parallel_jobs_get_the_same_tokens_as_alone_on_a_pipeline(path: Path) -> None:
    prompts = [PROMPT, OTHER, PROMPT[5:], PROMPT[:17], OTHER * 5, PROMPT[20:]]
    expected = [alone(path, prompt) for prompt in prompts]
    for n_ctx in (512, 96):  # the second is too small for all jobs: some are preempted
        with watched(path, n_ctx) as (_, engine):
            sinks = [generate(engine, prompt) for prompt in prompts]
            for sink in sinks:
                sink.result()
            assert [sink.tokens for sink in sinks] == expected


def test_an_error_in_flight_fails_only_its_job(path: Path) -> None:
    """The first chunk fails; a later step reports it. A waiting job is not affected."""
    expected = alone(path, OTHER)
    with watched(path) as (watch, engine):
        engine._runner._admission._n_parallel = 1  # the other job waits
        hold = Hold(watch, 1, fails=True)
        sink = generate(engine, PROMPT)
        other = generate(engine, OTHER)
        assert hold.reached.wait(WAIT_S)
        hold.release.set()
        with pytest.raises(BackendError, match="on fire"):
            raise sink.error()
        other.result()
        assert other.tokens == expected


@pytest.mark.parametrize("fails", [False, True])
def test_cancelling_work_in_flight(path: Path, fails: bool) -> None:
    """The next job gets neither the cancelled job's pages too early, nor its error, nor bad
    cells."""
    expected = alone(path, OTHER)
    with watched(path) as (watch, engine):
        engine._runner._admission._n_parallel = 1
        hold = Hold(watch, 1, fails)
        sink = Recorder()
        ticket = engine.submit(job(sink, *PROMPT, n_probs=0))
        assert hold.reached.wait(WAIT_S)
        engine.cancel(ticket)
        other = generate(engine, OTHER)
        hold.release.set()
        assert isinstance(sink.error(), CancelledError)
        other.result()
        assert other.tokens == expected
        watch.on_begin = lambda name, n: None
        again = generate(engine, PROMPT)
        assert (again.result().n_cached == 0) == fails
        assert again.tokens == alone(path, PROMPT)


def test_copying_a_shared_page_gets_no_error_of_other_jobs(path: Path) -> None:
    """Copying a shared page synchronizes first. An error of work in flight goes to its own job."""
    long = [3 + i * 7 % 50 for i in range(12 * N_UBATCH)]
    expected = {job: alone(path, job) for job in (tuple(long), (*OTHER, 11, 12))}
    with watched(path) as (watch, engine):
        generate(engine, OTHER).result()  # leaves a partly filled page in the pool
        watch.clear()
        hold = Hold(watch, 2, fails=True)
        sink = generate(engine, long)
        assert hold.reached.wait(WAIT_S)
        other = generate(engine, (*OTHER, 11, 12))
        hold.release.set()
        assert other.result().n_cached >= len(OTHER)
        assert other.tokens == expected[*OTHER, 11, 12]
        assert "on fire" in str(sink.error())
        assert sink.tokens == []
        again = generate(engine, long)
        assert again.result().n_cached == 0
        assert again.tokens == expected[tuple(long)]


def test_a_failing_prompt_without_prediction_reports_its_error(path: Path) -> None:
    """With n_predict 0 no output is read, so work in flight must be synchronized before the end."""
    with watched(path) as (watch, engine):
        hold = Hold(watch, len(PROMPT) // N_UBATCH, fails=True)
        hold.release.set()
        with pytest.raises(BackendError, match="on fire"):
            raise generate(engine, PROMPT, n_predict=0).error()
        assert generate(engine, PROMPT, n_predict=0).result().n_predicted == 0


def test_calls_get_no_errors_of_jobs(path: Path) -> None:
    """Before a call, the engine synchronizes, and errors go to the jobs in flight."""
    with watched(path) as (watch, engine):
        hold = Hold(watch, 2, fails=True)
        sink = generate(engine, PROMPT)
        assert hold.reached.wait(WAIT_S)
        threading.Timer(0.05, hold.release.set).start()
        engine.call(Context.synchronize)
        with pytest.raises(BackendError, match="on fire"):
            raise sink.error()


def test_preempting_work_in_flight(path: Path) -> None:
    """A prompt is preempted while its first chunk fails: its job fails, later ones are right."""
    expected = [alone(path, p) for p in (OTHER, PROMPT)]
    with watched(path) as (watch, engine):
        hold = Hold(watch, 1, fails=True)
        sink = generate(engine, PROMPT)
        assert hold.reached.wait(WAIT_S)
        hold.release.set()
        # a call that needs the whole pool preempts all running jobs
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
            hold.release.set()
            engine.close()
            assert isinstance(sink.error(), CancelledError | BackendError)
