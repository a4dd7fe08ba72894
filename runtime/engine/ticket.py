"""A job inside the engine: its tokens so far, its place in the KV pool, its clock.

What happens to it is decided in runtime/engine/engine.py. Tests: tests/runtime/test_engine.py.
"""

from __future__ import annotations

from ...model.kv_pages import KVSequence
from ...model.sampling import Sampler
from .job import Job, Result, StopType, Timings


class Ticket:
    """A submitted job. Callers of the engine hand it to `Engine.cancel` and look no deeper.

    All fields belong to the engine's thread but `settled`, which the engine's lock guards.
    """

    __slots__ = (
        "decoding",
        "has_new_line",
        "is_sound",
        "job",
        "n_cached",
        "n_done",
        "n_top",
        "sampler",
        "seq",
        "settled",
        "t_end",
        "t_first",
        "t_start",
        "tokens",
        "truncated",
    )

    def __init__(self, job: Job, sampler: Sampler) -> None:
        self.job = job
        self.sampler = sampler
        # so many of the largest logits are enough for all who look at them; 0: all are needed
        self.n_top = 0 if job.sink.needs_logits else sampler.n_top
        self.tokens = list(job.prompt)  # and what was predicted, so that all can be recomputed
        self.seq: KVSequence | None = None  # None while it waits
        self.n_cached = 0  # tokens that were there when it started first
        self.n_done = 0  # tokens evaluated, while not decoding
        self.decoding = False  # all tokens but the last, a predicted one, are evaluated
        self.is_sound = True  # its cells hold what they should: no step of its tokens has failed
        self.has_new_line = False
        self.truncated = False
        self.settled = False  # how it ends is decided: finished, failed or cancelled
        # seconds of time.perf_counter: first chunk, end of the prompt, end of all; 0: not yet
        self.t_start = self.t_first = self.t_end = 0.0

    @property
    def n_predicted(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - len(self.job.prompt)

    @property
    def n_evaluated(self) -> int:
        """Tokens whose keys and values its sequence holds."""
        return len(self.tokens) - 1 if self.decoding else self.n_done

    def enter(self, seq: KVSequence, now: float) -> None:
        """Start, for the first time or again, with a sequence that holds its first tokens."""
        self.seq = seq
        self.n_done = seq.length
        if not self.t_start:
            self.t_start = now
            self.n_cached = seq.length

    def leave(self) -> None:
        """Give the pages back; tokens, sampler and clock stay for another start."""
        if self.seq is not None:
            self.seq.free()
        self.seq = None
        self.decoding = False
        self.n_done = 0

    def result(self, stop_type: StopType) -> Result:
        """What to tell the sink."""
        n_prompt, n_predicted = len(self.job.prompt), self.n_predicted
        return Result(
            stop_type=stop_type,
            n_prompt=n_prompt,
            n_cached=self.n_cached,
            n_predicted=n_predicted,
            truncated=self.truncated,
            seed=self.sampler.seed,
            timings=Timings(
                cache_n=self.n_cached,
                prompt_n=n_prompt - self.n_cached,
                prompt_ms=1e3 * (self.t_first - self.t_start),
                predicted_n=n_predicted,
                predicted_ms=1e3 * (self.t_end - self.t_first),
            ),
        )
