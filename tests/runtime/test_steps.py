"""The last steps of a worker: their order, their limit, and what an engine adds."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from lamella.runtime.engine.steps import Step, Steps


def add(steps: Steps, n_decoded: int = 1) -> None:
    begin = time.perf_counter()
    steps.add(begin, n_decoded=n_decoded, n_prompt=2, n_outputs=3, n_running=4, is_new_graph=False)


def test_the_last_steps_are_kept_in_order() -> None:
    steps = Steps(4)
    for n in range(10):
        add(steps, n)
    assert [step.number for step in steps.since(0)] == [6, 7, 8, 9]
    assert [step.n_decoded for step in steps.since(8)] == [8, 9]
    assert steps.since(10) == []
    assert steps.since(10**9) == []
    assert (steps.n_steps, steps.n_prompt, steps.n_outputs) == (10, 20, 30)


def test_a_step_that_comes_while_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the slot of the oldest, and the order stays."""
    steps = Steps(2)
    add(steps)
    add(steps)

    class Slots(list[Step | None]):
        def __getitem__(self, i: Any) -> Any:
            if steps.n_steps == 2:
                add(steps)
            return super().__getitem__(i)

    monkeypatch.setattr(steps, "_slots", Slots(steps._slots))
    assert [step.number for step in steps.since(0)] == [1, 2]


def test_a_reader_beside_the_worker_sees_steps_in_order() -> None:
    steps = Steps(8)
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            add(steps)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(300):
            first = steps.n_steps
            numbers = [step.number for step in steps.since(first)]
            assert numbers == sorted(set(numbers))
            assert all(number >= first for number in numbers)
    finally:
        done.set()
        thread.join()
