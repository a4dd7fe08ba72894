"""Profiles a model: computes a prompt, then tokens one by one, three times over.

    records = ProfileRun(context, BenchTest(n_prompt=512, n_gen=32)).run()

The first pass times whole steps: it gives the speed. The second pass times each split and copy: it
gives Python's share. The third pass times each kernel call: it gives the table of ops. The tokens
are random, and the same in each pass. `profile_sums.py` sums up the records, `profile_trace.py`
writes them for a viewer. Knows no flags and prints nothing.
Tested by tests/observe/test_profile_model.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Final

import numpy as np

from ..model.batch import Batch
from ..model.context import Context
from ..model.kv_context import F32Array
from ..model.kv_sequence import KVSequence
from ..sched.profile import CopyTime, Profiler, SplitTime
from .bench import BenchTest

N_WARM_UP: Final = 4  # tokens: the first step builds a graph, the second one reuses it
PROMPT: Final = "prompt"
GENERATION: Final = "generation"


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A call of `Context.decode` with `n_tokens`, and the timed splits and copies in it. Times are
    nanoseconds."""

    phase: str
    n_tokens: int
    begin: int
    end: int
    splits: list[SplitTime]
    copies: list[CopyTime]

    @property
    def ns(self) -> int:
        return self.end - self.begin

    @property
    def parts(self) -> list[SplitTime | CopyTime]:
        """Splits and copies, by their begin."""
        parts: list[SplitTime | CopyTime] = [*self.splits, *self.copies]
        return sorted(parts, key=lambda part: part.begin)

    @property
    def python_ns(self) -> int:
        """The time outside of splits and copies."""
        return self.ns - sum(part.end - part.begin for part in self.parts)


@dataclass(frozen=True, slots=True)
class Records:
    """The same steps three times: untimed inside, with timed splits and copies, with timed kernel
    calls."""

    plain: list[TimedStep]
    splits: list[TimedStep]
    calls: list[TimedStep]


class ProfileRun:
    """Runs the steps of a test on a context, whose pool must have room for the test's cells."""

    def __init__(self, context: Context, test: BenchTest, seed: int = 0) -> None:
        self._context = context
        self._test = test
        rng = np.random.default_rng(seed)
        lengths = [test.n_depth, test.n_prompt, *[1] * test.n_gen]
        self._before, *rest = (rng.integers(0, context.n_vocab, n).tolist() for n in lengths)
        self._steps: list[list[int]] = [tokens for tokens in rest if tokens]

    def run(self, on_pass: Callable[[str], None] = lambda name: None) -> Records:
        """Warm up, then run the steps three times. Calls `on_pass` with a name before each pass.

        Raises:
            BackendError: a device failed. OutOfMemoryError: the pool is too small.
        """
        on_pass("warming up")
        n_first = bool(self._test.n_prompt) + N_WARM_UP
        self._pass(None, n_first)
        self._pass(Profiler(each_call=True), n_first)  # compiles what only profiling needs
        on_pass("running")
        plain = self._pass(None)
        on_pass("timing splits")
        splits = self._pass(Profiler())
        on_pass("timing kernels")
        return Records(plain, splits, self._pass(Profiler(each_call=True)))

    def logits(self, profiler: Profiler | None) -> list[F32Array]:
        """The logits of each step. A profiler does not change their bits."""
        found: list[F32Array] = []
        self._pass(profiler, found=found)
        return found

    def _pass(
        self,
        profiler: Profiler | None,
        n_steps: int | None = None,
        found: list[F32Array] | None = None,
    ) -> list[TimedStep]:
        context = self._context
        seq = context.pool.new_sequence()
        try:
            if self._before:
                self._decode(seq, self._before)
            context.set_profiler(profiler)
            return [self._step(seq, t, profiler, found) for t in self._steps[:n_steps]]
        finally:
            context.set_profiler(None)
            seq.free()

    def _step(
        self,
        seq: KVSequence,
        tokens: list[int],
        profiler: Profiler | None,
        found: list[F32Array] | None,
    ) -> TimedStep:
        begin = perf_counter_ns()
        logits = self._decode(seq, tokens)
        end = perf_counter_ns()
        if found is not None:
            found.append(logits)
        splits, copies = profiler.take() if profiler else ([], [])
        is_prompt = self._test.n_prompt and tokens is self._steps[0]
        return TimedStep(
            PROMPT if is_prompt else GENERATION, len(tokens), begin, end, splits, copies
        )

    def _decode(self, seq: KVSequence, tokens: list[int]) -> F32Array:
        batch, pos = Batch(), seq.length
        self._context.append(seq, len(tokens))
        scales = self._context.model.adapters.initial_scales
        batch.add(tokens, seq, pos, n_outputs=1, lora_scales=scales)
        return self._context.decode(batch)
