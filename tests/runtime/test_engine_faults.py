"""Cancellation, closing and faults in every phase: no pages are lost, and the engine goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

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

from lamella.base.errors import (
    BackendError,
    CancelledError,
    ClosedError,
    DeviceLostError,
    OutOfMemoryError,
)
from lamella.model.kv_sequence import KVSequence
from lamella.model.sampling import Logprobs
from lamella.model.sampling.dist import MersenneTwister
from lamella.model.sampling.native import NativeChain
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.job import Result
from lamella.runtime.engine.ticket import Ticket


class Gate(FakeContext):
    """Blocks before decode number `n` until it is opened."""

    def __init__(self, n: int, n_ctx: int = 512) -> None:
        super().__init__(n_ctx)
        self.reached, self.opened = threading.Event(), threading.Event()
        self.on_decode = lambda step: self.hold() if step == n else None

    def hold(self) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S)


class Broken(Recorder):
    """Raises in one of its methods."""

    def __init__(self, where: str, error: Exception | None = None) -> None:
        super().__init__()
        self.where = where
        self.raised = error or ValueError("the sink is broken")

    def fail_at(self, where: str) -> None:
        if where == self.where:
            raise self.raised

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        self.fail_at("progress")

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        self.fail_at("token")
        return super().token(token, logprobs)

    def finished(self, result: Result) -> None:
        super().finished(result)
        self.fail_at("finished")


def is_alive(engine: Engine) -> bool:
    """True if the engine still generates the right tokens."""
    sink = Recorder()
    engine.submit(job(sink, 4, 5, 6, seed=9, n_predict=8))
    sink.wait()
    return sink.tokens == expected((4, 5, 6), sampling(9), 8)


# --- cancelling ---

LONG = [5] * 100  # seven chunks of prompt


PHASES = {"first_chunk": 1, "chunk": 3, "last_chunk": 7, "first_token": 8, "later": 20}


@pytest.mark.parametrize("step", PHASES.values(), ids=PHASES)
def test_a_cancelled_job_ends_after_the_running_step(step: int) -> None:
    context = Gate(step)
    cancelled, other = Recorder(), Recorder()
    with running(context) as engine:
        ticket = engine.submit(job(cancelled, *LONG, ignore_eos=True))
        assert context.reached.wait(WAIT_S)
        n_tokens = len(cancelled.tokens)
        engine.cancel(ticket)
        engine.cancel(ticket)
        engine.submit(job(other, 6, n_predict=2, ignore_eos=True))
        context.opened.set()
        assert isinstance(cancelled.error(), CancelledError)
        assert len(cancelled.tokens) == n_tokens
        other.result()
        assert [len(s) for s in context.steps] == [1] * (step + 2)
        assert is_alive(engine)


def test_a_waiting_job_can_be_cancelled() -> None:
    context = Gate(3)
    first, waiting, last = Recorder(), Recorder(), Recorder()
    with running(context, n_parallel=1) as engine:
        engine.submit(job(first, n_predict=5, ignore_eos=True))
        ticket = engine.submit(job(waiting))
        engine.submit(job(last, 4, 5, seed=2, n_predict=5))
        assert context.reached.wait(WAIT_S)
        engine.cancel(ticket)
        context.opened.set()
        assert isinstance(waiting.error(), CancelledError)
        assert first.result().n_predicted == 5
        last.result()
    assert last.tokens == expected((4, 5), sampling(2), 5)
    assert waiting.tokens == []


def test_a_preempted_job_can_be_cancelled() -> None:
    context = FakeContext(32)
    a, b = Recorder(), Recorder()
    engine = make_engine(context)
    engine.submit(job(a, 5, n_predict=28, ignore_eos=True))
    ticket = engine.submit(job(b, 6, n_predict=28, ignore_eos=True))
    context.on_decode = lambda step: engine.cancel(ticket) if step == 20 else None
    engine.start()
    assert a.result().n_predicted == 28
    assert isinstance(b.error(), CancelledError)
    assert 0 < len(b.tokens) < 20  # it waited after a preemption
    engine.close()
    assert isinstance(b.error(), CancelledError)  # no second call of the sink
    assert context.pool.n_free == context.pool.n_pages


def test_a_preempted_job_whose_tokens_cannot_be_shared_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = FakeContext(32)
    engine = make_engine(context)
    insert = engine._runner.prefixes.tree.insert

    def fail(*args: Any, ended: bool, **more: Any) -> Any:
        if ended:
            raise ValueError("a bug")
        return insert(*args, ended=ended, **more)

    monkeypatch.setattr(engine._runner.prefixes.tree, "insert", fail)
    check_preemption(engine, context)


def test_a_preempted_job_whose_guesses_cannot_be_forgotten_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = FakeContext(32)
    engine = make_engine(context)

    def fail(_: Ticket) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(engine._runner._speculation, "forget", fail)
    check_preemption(engine, context)


def check_preemption(engine: Engine, context: FakeContext) -> None:
    """Check that two jobs get all their tokens, one after the other."""
    sinks = Recorder(), Recorder()
    for sink, token in zip(sinks, (5, 6), strict=True):
        engine.submit(job(sink, token, n_predict=28, ignore_eos=True))
    engine.start()
    assert [sink.result().n_predicted for sink in sinks] == [28, 28]
    engine.close()
    assert context.pool.n_free == context.pool.n_pages


def test_a_job_cancelled_during_a_failed_admission() -> None:
    class Full(FakeContext):
        def append(self, seq: KVSequence, n: int) -> None:
            if n == 7:
                engine.cancel(ticket)
                raise OutOfMemoryError("KV pool", 1, 0)
            super().append(seq, n)

    cancelled, other = Recorder(), Recorder()
    engine = make_engine(Full())
    engine.submit(job(other, n_predict=5, ignore_eos=True))
    ticket = engine.submit(job(cancelled, *[5] * 7))
    engine.start()
    assert isinstance(cancelled.error(), CancelledError)
    assert other.result().n_predicted == 5
    engine.close()


def test_a_sink_can_cancel_its_own_job() -> None:
    tickets: list[Ticket] = []
    with running(FakeContext()) as engine:

        def cancel(n: int) -> bool:
            if n == 4:
                engine.cancel(tickets[0])
            return True

        sink = Recorder(cancel)
        started = threading.Event()
        engine.submit(job(Recorder(lambda n: started.wait(WAIT_S)), n_predict=1))
        tickets.append(engine.submit(job(sink, ignore_eos=True)))
        started.set()
        assert isinstance(sink.error(), CancelledError)
        assert len(sink.tokens) == 4


def test_cancelling_an_ended_job_does_nothing() -> None:
    sink = Recorder()
    with running(FakeContext()) as engine:
        ticket = engine.submit(job(sink, n_predict=2))
        result = sink.result()
        engine.cancel(ticket)
        assert is_alive(engine)
    assert sink.ends == [result]


# --- faults ---


@pytest.mark.parametrize("where", ["progress", "token", "finished"])
def test_a_broken_sink_does_not_affect_other_jobs(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, other = Broken(where), Recorder()
    jobs = [job(broken, n_predict=1), job(other, 4, 5, seed=2, n_predict=9)]
    with caplog.at_level(logging.ERROR, "lamella.engine"), running(FakeContext(), *jobs) as engine:
        end = broken.wait()
        other.result()
        assert is_alive(engine)
    assert other.tokens == expected((4, 5), sampling(2), 9)
    assert isinstance(end, Result if where == "finished" else BackendError)
    assert "the sink is broken" in caplog.text


def test_a_sink_that_raises_in_failed_does_not_affect_other_jobs() -> None:
    class RaisesAtFailure(Broken):
        def failed(self, error: object) -> None:
            self.ended.set()
            raise RuntimeError("once more")

    sink = RaisesAtFailure("token")
    with running(FakeContext(), job(sink)) as engine:
        assert sink.ended.wait(WAIT_S)
        assert is_alive(engine)


def test_an_observer_that_raises_does_not_affect_jobs_and_other_observers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    n_calls, told = list[None](), list[None]()

    def broken_observer() -> None:
        n_calls.append(None)
        raise ValueError("the observer is broken")

    sink = Recorder()
    with caplog.at_level(logging.ERROR, "lamella.engine"), running(FakeContext()) as engine:
        engine.when_stepped(broken_observer)
        engine.when_stepped(lambda: told.append(None))
        engine.submit(job(sink, 4, 5, seed=2, n_predict=9))
        sink.result()
        assert is_alive(engine)
    assert sink.tokens == expected((4, 5), sampling(2), 9)
    assert len(n_calls) == len(told) > 9
    (record,) = caplog.records  # once, with its name and its place
    assert "broken_observer raised after a step" in record.message
    assert record.exc_info is not None


def fail_decode(context: FakeContext, error: Exception, at: int) -> None:
    def raising(step: int) -> None:
        if step == at:
            raise error

    context.on_decode = raising


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize(
    "error", [BackendError("the device is gone"), ZeroDivisionError("oops"), MemoryError()]
)
def test_a_failing_step_fails_its_jobs_and_the_engine_goes_on(error: Exception, at: int) -> None:
    context = FakeContext(n_ubatch=4)
    fail_decode(context, error, at)
    sinks = [Recorder() for _ in range(3)]
    jobs = [job(s, *[5] * 3, seed=i, ignore_eos=True) for i, s in enumerate(sinks[:2])]
    with running(context, *jobs, n_parallel=2) as engine:
        engine.submit(job(sinks[2], 6, n_predict=3, ignore_eos=True))
        for sink in sinks[:2]:
            failure = sink.error()
            assert isinstance(failure, BackendError)
            assert failure is error or failure.__cause__ is error
        assert sinks[2].result().n_predicted == 3
        assert is_alive(engine)


def test_the_log_of_a_lost_device_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    context, sink = FakeContext(), Recorder()
    fail_decode(context, DeviceLostError("ray:two/CPU: it was closed"), at=1)
    with caplog.at_level(logging.ERROR, "lamella.engine"), running(context, job(sink, 1, 2)):
        sink.error()
    assert "ray:two/CPU: it was closed" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


def test_jobs_without_a_token_in_the_failing_step_go_on() -> None:
    context = FakeContext(n_ubatch=4)
    fail_decode(context, BackendError("the device is gone"), at=1)
    hit, spared = Recorder(), Recorder()
    jobs = [job(hit, *[5] * 8), job(spared, 6, 7, seed=4, n_predict=6)]
    with running(context, *jobs):
        hit.error()
        spared.result()
    assert spared.tokens == expected((6, 7), sampling(4), 6)


def test_a_sampler_that_raises_fails_only_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    before, bad = NativeChain.before, MersenneTwister(13).state()

    def raising(self: NativeChain) -> None:
        if (self._twister == bad).all():
            raise FloatingPointError("no candidates left")
        before(self)

    monkeypatch.setattr(NativeChain, "before", raising)
    broken, other = Recorder(), Recorder()
    jobs = [job(broken, seed=13), job(other, 4, 5, seed=2, n_predict=9)]
    with running(FakeContext(), *jobs):
        assert "no candidates left" in str(broken.error())
        other.result()
    assert other.tokens == expected((4, 5), sampling(2), 9)


def test_missing_memory_at_admission_fails_the_job() -> None:
    class Full(FakeContext):
        def append(self, seq: KVSequence, n: int) -> None:
            if n == 7:
                raise OutOfMemoryError("KV pool", 1, 0)
            super().append(seq, n)

    sink = Recorder()
    with running(Full(), job(sink, *[5] * 7)) as engine:
        assert isinstance(sink.error(), OutOfMemoryError)
        assert is_alive(engine)


def test_a_fault_outside_of_decode_fails_the_running_jobs() -> None:
    class Strange(FakeContext):
        def append(self, seq: KVSequence, n: int) -> None:
            if seq.length == 8:  # it needs another page
                raise RuntimeError("a fault of our own")
            super().append(seq, n)

    sink = Recorder()
    with running(Strange(aside=False), job(sink, *[5] * 4, ignore_eos=True)) as engine:
        assert "a fault of our own" in str(sink.error())
        last = Recorder()
        engine.submit(job(last, *[5] * 6, n_predict=3, ignore_eos=True))
        assert last.result().n_predicted == 3


# --- closing ---


def begin_to_close(engine: Engine) -> threading.Thread:
    """A thread in which `close` has begun and waits for the running step."""
    closer = threading.Thread(target=engine.close)
    closer.start()
    while not engine.closed:
        closer.join(0.001)
    return closer


def test_closing_cancels_running_and_waiting_jobs() -> None:
    context = Gate(4)
    sinks = [Recorder() for _ in range(4)]
    jobs = [job(s, ignore_eos=True) for s in sinks]
    with running(context, *jobs, n_parallel=2) as engine:
        assert context.reached.wait(WAIT_S)
        closer = begin_to_close(engine)
        context.opened.set()
        closer.join(WAIT_S)
        for sink in sinks:
            assert isinstance(sink.error(), CancelledError)
        engine.close()


def test_closing_before_the_start_and_when_idle() -> None:
    sink = Recorder()
    engine = make_engine(FakeContext())
    engine.submit(job(sink))
    engine.close()
    engine.close()
    assert isinstance(sink.error(), CancelledError)
    with pytest.raises(ClosedError):
        engine.start()
    with running(FakeContext()) as idle:
        idle.close()


def test_the_sink_of_a_cancelled_job_is_called_once_when_the_engine_closes() -> None:
    context = Gate(2)
    sink = Recorder()
    with running(context) as engine:
        ticket = engine.submit(job(sink, ignore_eos=True))
        assert context.reached.wait(WAIT_S)
        closing = threading.Thread(target=engine.close)
        closing.start()
        engine.cancel(ticket)
        context.opened.set()
        closing.join(WAIT_S)
    assert isinstance(sink.error(), CancelledError)


def test_a_sink_may_close_the_engine() -> None:
    context = FakeContext()
    engine = make_engine(context)

    def close(n: int) -> bool:
        engine.close()
        return True

    sink = Recorder(close)
    engine.submit(job(sink, ignore_eos=True))
    engine.start()
    assert isinstance(sink.error(), CancelledError)
    engine.close()
    assert context.pool.n_free == context.pool.n_pages


@pytest.mark.parametrize(
    "use", [lambda e: e.submit(job(Recorder())), lambda e: e.call(lambda c: None), Engine.start]
)
def test_a_closed_engine_raises(use: Callable[[Engine], Any]) -> None:
    with running(FakeContext()) as engine:
        engine.close()
        with pytest.raises(ClosedError, match="engine is closed"):
            use(engine)


def test_a_pending_call_fails_when_the_engine_closes() -> None:
    context = Gate(1)
    errors: list[BaseException] = []
    with running(context) as engine:
        engine.submit(job(Recorder(), ignore_eos=True))
        assert context.reached.wait(WAIT_S)

        def call() -> None:
            try:
                engine.call(lambda c: None)
            except ClosedError as e:
                errors.append(e)

        caller = threading.Thread(target=call)
        caller.start()
        while not engine._queue._calls:
            caller.join(0.001)
        closer = begin_to_close(engine)
        context.opened.set()
        caller.join(WAIT_S)
        closer.join(WAIT_S)
    assert len(errors) == 1


def test_close_does_not_wait_forever_for_a_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lamella.runtime.engine.worker.CLOSE_TIMEOUT_S", 0.01)
    context = Gate(1)
    sink = Recorder()
    with running(context) as engine:
        engine.submit(job(sink))
        assert context.reached.wait(WAIT_S)
        with caplog.at_level(logging.ERROR, "lamella.engine"):
            engine.close()
        assert "did not end within 0.01 s" in caplog.text
        context.opened.set()
        monkeypatch.setattr("lamella.runtime.engine.worker.CLOSE_TIMEOUT_S", WAIT_S)
    assert isinstance(sink.error(), CancelledError)


def test_when_ended_waits_for_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamella.runtime.engine.worker.CLOSE_TIMEOUT_S", 0.01)
    context = Gate(1)
    engine = make_engine(context)
    freed = threading.Event()
    calls: list[str] = []
    engine.when_ended(lambda: calls.append("before the start"))
    assert calls == ["before the start"]
    engine.start()
    engine.submit(job(Recorder(), ignore_eos=True))
    assert context.reached.wait(WAIT_S)
    engine.close()  # the step is still running
    engine.when_ended(freed.set)
    assert not freed.is_set()
    context.opened.set()
    assert freed.wait(WAIT_S)
    engine.when_ended(lambda: calls.append("after the end"))
    assert calls[-1] == "after the end"
