"""The pulse of a worker: steps that hang, steps that fail in a row, a thread that is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from fake_context import Clock, FakeContext, PipelineContext, Recorder, job, make_engine

from lamella.base.errors import BackendError, ClosedError
from lamella.model.embed_context import EmbedContext
from lamella.runtime.embedder import Embedder
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.pulse import N_FAILED_MAX, Pulse
from lamella.runtime.params import EngineParams

LIMIT = 60.0


def step(pulse: Pulse, *, error: str = "", computed: bool = False) -> None:
    pulse.begin()
    if error:
        pulse.failed(BackendError(error))
    if computed:
        pulse.computed()
    pulse.end()


def test_a_step_that_hangs() -> None:
    clock = Clock()
    pulse = Pulse(clock.perf_counter)
    assert (pulse.seconds, pulse.trouble(LIMIT)) == (0.0, "")
    clock.wait(1000)  # idle
    pulse.begin()
    clock.wait(LIMIT)
    assert (pulse.seconds, pulse.trouble(LIMIT)) == (LIMIT, "")
    clock.wait(1)
    assert pulse.trouble(LIMIT) == "a step of the engine has run for 61 s, 60 s at most"
    pulse.end()
    assert pulse.trouble(LIMIT) == ""


def test_failed_steps_in_a_row() -> None:
    pulse = Pulse()
    for _ in range(N_FAILED_MAX - 1):
        step(pulse, error="lost")
    step(pulse)  # nothing was to do: this proves nothing
    assert pulse.trouble(LIMIT) == ""
    step(pulse, error="lost")
    assert pulse.trouble(LIMIT) == "the last 3 steps of the engine failed: BackendError: lost"
    step(pulse, error="of one request", computed=True)
    assert (pulse.trouble(LIMIT), pulse.n_failed, pulse.n_failed_total) == ("", 0, N_FAILED_MAX)


@pytest.mark.parametrize(
    ("error", "text"),
    [(None, "the engine has ended"), (KeyError("x"), "the engine has ended: KeyError: 'x'")],
)
def test_a_thread_that_is_gone(error: BaseException | None, text: str) -> None:
    pulse = Pulse()
    pulse.begin()
    pulse.died(error)
    assert pulse.trouble(LIMIT) == text


def run_job(engine: Engine) -> Recorder:
    sink = Recorder()
    engine.submit(job(sink, n_predict=2))
    sink.wait()
    engine.call(lambda _: None)  # the step is over
    return sink


def test_an_engine_whose_device_is_lost_and_found() -> None:
    context = FakeContext()

    def fail(_: int) -> None:
        raise BackendError("the device is lost")

    engine = make_engine(context)
    engine.start()
    assert engine.pulse.trouble(LIMIT) == ""
    context.on_decode = fail
    for _ in range(N_FAILED_MAX):
        assert engine.pulse.trouble(LIMIT) == ""
        assert isinstance(run_job(engine).error(), BackendError)
    assert "the device is lost" in engine.pulse.trouble(LIMIT)
    context.on_decode = lambda _: None
    run_job(engine).result()
    assert engine.pulse.trouble(LIMIT) == ""
    engine.close()


class NoProgress(Recorder):
    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        raise ValueError("the sink is broken")


def test_errors_of_requests_say_nothing_of_the_device() -> None:
    engine = make_engine(PipelineContext(n_ubatch=4))
    engine.start()
    for _ in range(N_FAILED_MAX):
        sink = NoProgress()
        engine.submit(job(sink, *range(3, 12), cache_prompt=False))
        assert "the sink is broken" in str(sink.error())  # nothing but a part of a prompt computes
        engine.call(lambda _: None)
    assert (engine.pulse.trouble(LIMIT), engine.pulse.n_failed_total) == ("", 0)
    engine.close()


def test_prefixes_that_cannot_be_restored_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object) -> None:
        raise BackendError("the device is lost")

    engine = make_engine(FakeContext())
    monkeypatch.setattr(engine._runner.prefixes, "begin", begin)
    engine.start()
    for _ in range(N_FAILED_MAX):
        assert isinstance(run_job(engine).error(), BackendError)
    assert "the device is lost" in engine.pulse.trouble(LIMIT)
    engine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_whose_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(FakeContext())

    def step() -> None:
        raise SystemError("a bug")

    def fail_all(error: Exception) -> None:
        raise error

    monkeypatch.setattr(engine._runner, "step", step)
    monkeypatch.setattr(engine._runner, "fail_all", fail_all)
    sink = Recorder()
    engine.submit(job(sink))
    engine.start()
    assert sink.error()
    engine._worker._thread.join()  # type: ignore[union-attr]
    assert engine.pulse.trouble(LIMIT) == "the engine has ended: SystemError: a bug"
    with pytest.raises(ClosedError):
        engine.submit(job(Recorder()))


class EmbeddingContext:
    """Fails while `error` is set."""

    error: Exception | None = None
    n_graphs_built = 0

    def check(self, text: Sequence[int], what: str) -> None: ...
    def lower_priority(self) -> None: ...

    def n_fitting(self, lengths: Sequence[int]) -> int:
        return len(lengths)

    def embed(self, texts: Sequence[Any]) -> list[Any]:
        if self.error is not None:
            raise self.error
        return list(texts)


def test_an_embedder() -> None:
    context = EmbeddingContext()
    embedder = Embedder(cast(EmbedContext, context), EngineParams())
    embedder.start()
    context.error = BackendError("the device is lost")
    for _ in range(N_FAILED_MAX):
        with pytest.raises(BackendError):
            embedder.submit([[1]]).result()
    embedder.close()
    assert embedder.pulse.n_failed == N_FAILED_MAX
    assert embedder.pulse.trouble(LIMIT) == "the engine has ended"
