"""The last steps of a worker, and totals of all its steps, for those who watch it live.

The worker's thread adds, any thread reads: without a lock, as each slot is one value. A reader may
miss the last step. Knows no context and no jobs. Tested by tests/runtime/test_steps.py.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

N_KEPT: Final = 1024


class Step(NamedTuple):
    """One step.

    Attributes:
        number: of the step, from 0 on.
        begin: time.perf_counter when it began.
        seconds: how long it took; in a pipeline, the devices may still compute.
        n_decoded: tokens of texts that were continued.
        n_prompt: tokens of prompts.
        n_running: requests that ran.
        is_new_graph: a graph was built for it, which takes longer.
    """

    number: int
    begin: float
    seconds: float
    n_decoded: int
    n_prompt: int
    n_running: int
    is_new_graph: bool


class Steps:
    """The last `n_kept` steps.

    Attributes:
        n_prompt: tokens of prompts in all steps.
        n_outputs: tokens that all steps made.
    """

    __slots__ = ("_n_steps", "_slots", "n_outputs", "n_prompt")

    def __init__(self, n_kept: int = N_KEPT) -> None:
        self._slots: list[Step | None] = [None] * n_kept
        self._n_steps = 0
        self.n_prompt = 0
        self.n_outputs = 0

    @property
    def n_steps(self) -> int:
        """Number of steps so far."""
        return self._n_steps

    def add(
        self,
        begin: float,
        *,
        n_decoded: int,
        n_prompt: int,
        n_outputs: int,
        n_running: int,
        is_new_graph: bool,
    ) -> None:
        """Add a step that began at `begin` and ends now."""
        n = self._n_steps
        seconds = time.perf_counter() - begin
        step = Step(n, begin, seconds, n_decoded, n_prompt, n_running, is_new_graph)
        self._slots[n % len(self._slots)] = step
        self.n_prompt += n_prompt
        self.n_outputs += n_outputs
        self._n_steps = n + 1

    def since(self, first: int) -> list[Step]:
        """The kept steps from number `first` on, in order."""
        end = self._n_steps
        n_kept = len(self._slots)
        slots = (self._slots[n % n_kept] for n in range(max(first, end - n_kept, 0), end))
        # a later step may have taken a slot meanwhile
        return sorted(step for step in slots if step is not None)
