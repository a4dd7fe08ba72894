"""Slots: numbers of running jobs, and what the last ones left."""

from __future__ import annotations

from typing import Any, cast

from fake_context import FakeContext, Recorder, job, running

from lamella.model.kv_prefix import PLAIN
from lamella.runtime.engine.slots import SlotContent, Slots
from lamella.runtime.engine.ticket import RunningJob


def test_a_job_gets_the_slot_that_it_names_if_that_is_free() -> None:
    slots = Slots(3)
    assert [slots.take(-1), slots.take(4), slots.take(1)] == [0, 1, 2]
    slots.leave(1)
    slots.leave(2)
    assert [slots.take(2), slots.take(0)] == [2, 1]


def test_the_last_job_of_a_slot_is_known() -> None:
    slots = Slots(2)
    content, job = SlotContent((1, 2), PLAIN), RunningJob(*[cast(Any, 0)] * 13)
    job = job._replace(slot=slots.take(1))
    slots.end(job, content)
    slots.leave(slots.take(1))  # preempted: nothing new
    assert (slots.last, slots.ended) == ({1: content}, {1: job})


def test_jobs_have_different_slots_and_leave_their_tokens() -> None:
    sinks = [Recorder() for _ in range(6)]
    with running(FakeContext(64), n_parallel=3) as engine:
        tickets = [
            engine.submit(job(sink, 7, 8, 9 + i, n_predict=30, ignore_eos=True, seed=i))
            for i, sink in enumerate(sinks)
        ]
        for sink in sinks:
            sink.result()
        assert {ticket.slot for ticket in tickets} == {0, 1, 2}
        for slot, content in engine.slots.last.items():
            of = [t for t in tickets if t.slot == slot]
            assert list(content.tokens) in [t.tokens[:-1] for t in of]
