"""What goes into the engine and what comes out: jobs, sinks, results, timings.

Knows token ids only; text is made by the sinks of runtime/text.py.
Tests: tests/runtime/test_engine.py, tests/runtime/test_engine_limits.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ...base.errors import LamellaError
from ...model.sampling import Logprobs, SamplingParams


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
    """Receives the tokens of a job. Its methods are called on the engine's thread: they must be
    quick and must not raise.

    The last call is either `finished` or `failed`.
    """

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        """`n_processed` of `n_total` prompt tokens are evaluated, `n_cached` of them by other jobs.
        Counting starts over after a preemption."""

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        """A new token; a token that ends the generation is not passed on.

        `logprobs` are those that the job asked for. Return False to stop the generation
        (`StopType.WORD`).
        """

    def finished(self, result: Result) -> None:
        """The generation ended without an error."""

    def failed(self, error: LamellaError) -> None:
        """The generation was cancelled (CancelledError) or could not go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One generation: a tokenized prompt and how to continue it.

    Attributes:
        prompt: its tokens.
        sampling: how tokens are chosen.
        sink: receives the tokens.
        n_predict: most tokens to predict; -1: until the model ends or the context is full.
        cache_prompt: share evaluated prefixes with other jobs.
        ignore_eos: never sample a token that ends the generation.
        t_max_predict_ms: milliseconds after the first token, once there is a new line; 0: no limit.
        n_probs: the sink gets the log-probabilities of so many tokens at each place; 0: none.
        post_sampling_probs: these are what the samplers left, not the model's own.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams
    sink: Sink
    n_predict: int = -1
    cache_prompt: bool = True
    ignore_eos: bool = False
    t_max_predict_ms: float = 0
    n_probs: int = 0
    post_sampling_probs: bool = False

    @property
    def needs_logits(self) -> bool:
        """True if the largest logits are not enough: the model's own probabilities are wanted."""
        return self.n_probs > 0 and not self.post_sampling_probs
