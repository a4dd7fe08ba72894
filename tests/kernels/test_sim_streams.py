"""Streams of simulated devices: order, errors raised by the next wait, and events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from lamella.base.errors import BackendError
from lamella.kernels.sim.stream import InlineStream, SimEvent, Stream, WorkerStream

# no work here takes time: a longer wait is a deadlock
SOON = 20.0


@pytest.fixture
def new() -> Iterator[Callable[[], WorkerStream]]:
    """Makes worker streams, which are closed after the test."""
    streams: list[WorkerStream] = []

    def make() -> WorkerStream:
        streams.append(WorkerStream(f"S{len(streams)}"))
        return streams[-1]

    yield make
    for stream in streams:
        stream.close()


New = Callable[[], WorkerStream]


def fail(text: str = "broken") -> None:
    raise ValueError(text)


def runs(name: str) -> bool:
    return any(t.name == name for t in threading.enumerate())


def holding(stream: Stream) -> threading.Event:
    """Make the stream wait until the returned event is set; at most SOON seconds."""
    gate = threading.Event()
    stream.submit(lambda: gate.wait(SOON))
    return gate


# --- workers ---


def test_tasks_run_in_order(new: New) -> None:
    stream, done = new(), list[int]()
    gate = holding(stream)
    for i in range(100):
        stream.submit(partial(done.append, i))
    gate.set()
    stream.synchronize()
    assert done == list(range(100))


def test_submitting_a_task_does_not_wait(new: New) -> None:
    stream, done = new(), list[int]()
    gate = holding(stream)
    stream.submit(lambda: done.append(threading.get_ident()))
    assert done == []
    gate.set()
    stream.synchronize()
    assert done != [threading.get_ident()]
    assert len(done) == 1


def test_synchronize_waits_for_all_submitted_tasks(new: New) -> None:
    stream, done = new(), list[int]()
    gate = holding(stream)
    stream.submit(lambda: done.append(1))
    threading.Timer(0.02, gate.set).start()
    stream.synchronize()
    assert done == [1]


def test_a_stream_without_tasks_is_done(new: New) -> None:
    stream = new()
    stream.synchronize()
    assert not runs("S0")  # its thread has not even begun
    stream.close()


def test_an_error_is_raised_with_its_cause_by_the_next_wait(new: New) -> None:
    stream = new()
    stream.submit(fail)
    with pytest.raises(BackendError, match="S0: broken") as e:
        stream.synchronize()
    assert isinstance(e.value.__cause__, ValueError)
    stream.synchronize()  # raised once


def test_a_lamella_error_is_raised_unchanged(new: New) -> None:
    error = BackendError("of a kernel")

    def task() -> None:
        raise error

    stream = new()
    stream.submit(task)
    with pytest.raises(BackendError) as e:
        stream.synchronize()
    assert e.value is error


def test_tasks_after_a_failed_one_are_skipped(new: New) -> None:
    """Until the error is raised: they may depend on the failed task."""
    stream, done = new(), list[int]()
    stream.submit(lambda: done.append(1))
    stream.submit(fail)
    stream.submit(lambda: done.append(2))
    stream.submit(lambda: fail("never"))  # does not run
    with pytest.raises(BackendError, match="broken"):
        stream.synchronize()
    assert done == [1]
    stream.submit(lambda: done.append(3))
    stream.synchronize()
    assert done == [1, 3]


def test_close_waits_for_submitted_tasks(new: New) -> None:
    stream, done = new(), list[int]()
    gate = holding(stream)
    stream.submit(lambda: done.append(1))
    threading.Timer(0.02, gate.set).start()
    stream.close()
    assert done == [1]
    stream.close()  # twice is fine
    stream.synchronize()  # nothing is left to wait for


def test_closing_ends_the_thread(new: New) -> None:
    stream = new()
    stream.submit(lambda: None)
    stream.synchronize()
    assert runs("S0")
    stream.close()
    assert not runs("S0")


# --- events ---


def test_an_event_is_reached_after_earlier_tasks(new: New) -> None:
    stream, event, done = new(), SimEvent(), list[int]()
    gate = holding(stream)
    stream.submit(lambda: done.append(1))
    event.record(stream)
    later = holding(stream)  # later tasks do not matter
    gate.set()
    event.synchronize()
    assert done == [1]
    later.set()


def test_a_stream_waits_for_an_event_of_another(new: New) -> None:
    first, second, event, done = new(), new(), SimEvent(), list[int]()
    gate, begun = holding(first), threading.Event()
    first.submit(lambda: done.append(1))
    event.record(first)
    second.submit(lambda: done.append(2))  # before the wait: does not wait
    second.submit(begun.set)
    event.wait(second)
    second.submit(lambda: done.append(3))
    before = SimEvent()
    before.record(second)
    assert begun.wait(SOON)
    threading.Timer(0.02, gate.set).start()
    second.synchronize()
    assert done == [2, 1, 3]


def test_an_event_never_recorded_is_reached(new: New) -> None:
    stream, event, done = new(), SimEvent(), list[int]()
    event.synchronize()
    event.wait(stream)
    stream.submit(lambda: done.append(1))
    stream.synchronize()
    assert done == [1]


def test_an_event_recorded_again_means_its_last_recording(new: New) -> None:
    stream, event, done = new(), SimEvent(), list[int]()
    event.record(stream)
    event.synchronize()
    gate = holding(stream)
    stream.submit(lambda: done.append(1))
    event.record(stream)
    threading.Timer(0.02, gate.set).start()
    event.synchronize()
    assert done == [1]


def test_an_earlier_wait_keeps_the_earlier_recording(new: New) -> None:
    first, second, event, done = new(), new(), SimEvent(), list[int]()
    begin = holding(second)
    event.record(first)
    event.wait(second)
    gate = holding(first)
    first.submit(lambda: done.append(1))
    event.record(first)  # not reached until the gate opens
    begin.set()
    second.synchronize()
    assert done == []
    gate.set()


def test_events_after_a_failure_are_reached(new: New) -> None:
    """Otherwise waits for them would deadlock. Only the failed stream raises the error."""
    first, second, event, done = new(), new(), SimEvent(), list[int]()
    first.submit(fail)
    first.submit(lambda: done.append(1))
    event.record(first)
    event.wait(second)
    second.submit(lambda: done.append(2))
    second.synchronize()
    event.synchronize()
    assert done == [2]
    with pytest.raises(BackendError, match="S0: broken"):
        first.synchronize()


def test_a_failed_stream_still_waits_for_events(new: New) -> None:
    """Tasks submitted after the error is raised must not run too early."""
    first, second, event, done = new(), new(), SimEvent(), list[int]()
    gate = holding(first)
    first.submit(lambda: done.append(1))
    event.record(first)
    second.submit(fail)
    event.wait(second)
    threading.Timer(0.02, gate.set).start()
    with pytest.raises(BackendError):
        second.synchronize()
    assert done == [1]


def test_streams_may_wait_for_each_other_in_turns(new: New) -> None:
    streams, done = [new(), new()], list[int]()
    for i in range(50):
        stream, other = streams[i % 2], streams[1 - i % 2]
        stream.submit(partial(done.append, i))
        event = SimEvent()
        event.record(stream)
        event.wait(other)
    for stream in streams:
        stream.synchronize()
    assert done == list(range(50))


# --- without a thread ---


def test_an_inline_stream_runs_at_once() -> None:
    stream, done = InlineStream("S"), list[int]()
    stream.submit(lambda: done.append(threading.get_ident()))
    assert done == [threading.get_ident()]
    event = SimEvent()
    event.record(stream)
    event.synchronize()
    event.wait(stream)
    stream.synchronize()
    stream.close()
    stream.close()


def test_an_inline_stream_fails_at_once() -> None:
    stream, done = InlineStream("S"), list[int]()
    with pytest.raises(BackendError, match="S: broken") as e:
        stream.submit(fail)
    assert isinstance(e.value.__cause__, ValueError)
    stream.submit(lambda: done.append(1))
    stream.synchronize()  # the error was raised already
    assert done == [1]
