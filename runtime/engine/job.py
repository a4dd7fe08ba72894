"""What goes into the engine and what comes out: jobs, sinks, results, timings.

Knows token ids only; text is made by the sinks of runtime/text.py.
Tests: tests/runtime/test_engine.py, tests/runtime/test_engine_limits.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ...base.errors import LamellaError
from ...model.outputs import Row
from ...model.sampling import Sampler, SamplingParams


class StopType(StrEnum):
    """Why a generation ended; the values are llama-server's `stop_type`."""

    EOS = "eos"  # the model ended it
    LIMIT = "limit"  # n_predict, t_max_predict_ms or the context's size
    WORD = "word"  # the sink wanted no more: a stop string was found


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long the two halves of a job took; field names are those of llama-server's `timings`.

    The prompt's time runs from its first chunk to the first sampled token, so that the generation's
    rates count one token less than was predicted.
    """

    cache_n: int  # prompt tokens that were not evaluated again
    prompt_n: int  # prompt tokens that were evaluated
    prompt_ms: float
    predicted_n: int
    predicted_ms: float

    def as_dict(self) -> dict[str, int | float]:
        """The nine fields of llama-server (server-common.cpp, result_timings::to_json).

        A rate over no tokens or no time is 0.
        """
        n_timed = max(self.predicted_n - 1, 0)
        return {
            "cache_n": self.cache_n,
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": _ratio(self.prompt_ms, self.prompt_n),
            "prompt_per_second": _ratio(1e3 * self.prompt_n, self.prompt_ms),
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": _ratio(self.predicted_ms, n_timed),
            "predicted_per_second": _ratio(1e3 * n_timed, self.predicted_ms),
        }


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a job ended."""

    stop_type: StopType
    n_prompt: int
    n_cached: int
    n_predicted: int  # the token that ended it included
    truncated: bool  # the context was full
    seed: int  # the seed that was really used
    timings: Timings
    stopping_word: str = ""  # filled in by the sink that found it


class Sink(Protocol):
    """Who a job's tokens go to. Called on the engine's thread: must be quick and must not raise.

    Exactly one of `finished` and `failed` is called, once, and nothing after it.
    """

    @property
    def needs_logits(self) -> bool:
        """Whether `token` must be given all logits; always the same."""

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        """`n_processed` prompt tokens are evaluated, `n_cached` of them before this job was there;
        starts over if the job was preempted."""

    def token(self, token: int, logits: Row, sampler: Sampler) -> bool:
        """One new token, never one that ends the generation.

        `logits` [n_vocab] are the model's own, which `sampler` has just chosen from, or unless
        `needs_logits` the largest of them; both are valid during the call only. False stops the
        generation (`StopType.WORD`).
        """

    def finished(self, result: Result) -> None:
        """The generation ended as it should."""

    def failed(self, error: LamellaError) -> None:
        """The generation was cancelled (CancelledError) or could not go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One generation to make: a tokenised prompt and how to go on from it."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    sink: Sink
    n_predict: int = -1  # most tokens to predict; -1: until the model ends or the context is full
    cache_prompt: bool = True  # begin with what others have evaluated of it, and leave it to them
    ignore_eos: bool = False  # tokens that end a generation are never sampled
    t_max_predict_ms: float = 0  # since the first token, once there is a new line; 0: for ever
