"""The engine's input and output: jobs, sinks, results, timings.

Knows token ids only; the sinks of runtime/text.py make text.
Tests: tests/runtime/test_engine.py, tests/runtime/test_engine_limits.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ...base.errors import LamellaError
from ...model.guide import GrammarSpec, Loosened, Triggers
from ...model.sampling import Logprobs
from ..params import RequestParams
from .shares import NOBODY, Owner
from .thinking import Thinking


class StopType(StrEnum):
    """Why a generation ended; the values are llama-server's `stop_type`."""

    EOS = "eos"  # the model sampled an end token
    LIMIT = "limit"  # n_predict, t_max_predict_ms or the context's size was reached
    WORD = "word"  # the sink found a stop string


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long the two parts of a job took. Fields are named as in llama-server's `timings`.

    The prompt's time runs from its first chunk to the first sampled token. So the rates of the
    generation leave out the first predicted token.

    Attributes:
        cache_n: prompt tokens taken from the cache.
        prompt_n: prompt tokens that were evaluated.
        prompt_ms: milliseconds for the prompt.
        predicted_n: generated tokens.
        predicted_ms: milliseconds for the generated tokens after the first.
        draft_n: guesses of later tokens that were checked.
        draft_n_accepted: those of them that came true.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    draft_n: int = 0
    draft_n_accepted: int = 0

    def as_dict(self) -> dict[str, int | float]:
        """The fields of llama-server (server-common.cpp, result_timings::to_json).

        A rate over no tokens or no time is 0. Those of drafts are there if any was made.
        """
        drafts = {"draft_n": self.draft_n, "draft_n_accepted": self.draft_n_accepted}
        return {
            "cache_n": self.cache_n,
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": _ratio(self.prompt_ms, self.prompt_n),
            "prompt_per_second": self.prompt_per_second,
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": _ratio(self.predicted_ms, self._n_timed),
            "predicted_per_second": self.predicted_per_second,
            **(drafts if self.draft_n else {}),
        }

    @property
    def prompt_per_second(self) -> float:
        """Evaluated tokens of the prompt per second."""
        return _ratio(1e3 * self.prompt_n, self.prompt_ms)

    @property
    def predicted_per_second(self) -> float:
        """Predicted tokens per second, without the first one."""
        return _ratio(1e3 * self._n_timed, self.predicted_ms)

    @property
    def _n_timed(self) -> int:
        return max(self.predicted_n - 1, 0)


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a job ended."""

    stop_type: StopType
    n_prompt: int
    n_cached: int
    n_predicted: int  # includes an end token
    truncated: bool  # the context became full
    seed: int  # the seed in use; never the one for "random"
    timings: Timings
    stopping_word: str = ""  # set by the sink that found it
    complete: bool | None = None  # the text matches its grammar as a whole; None: it has none
    loosened: Sequence[Loosened] = ()  # the keywords of a JSON schema that are not enforced
    n_reasoning: int = 0  # predicted tokens of reasoning, without its marks

    @property
    def finish_reason(self) -> str:
        """OpenAI's name for the reason that the job ended: "stop" or "length"."""
        return "length" if self.stop_type is StopType.LIMIT else "stop"


class Sink(Protocol):
    """Receives the tokens of a job. The engine's thread calls its methods: they must be quick and
    must not raise.

    The last call is either `finished` or `failed`.
    """

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        """`n_processed` of `n_total` prompt tokens are evaluated; `n_cached` of them came from the
        cache. Counting starts over after a preemption."""

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        """A new token. Called for an end token only with the option `special`.

        `logprobs` are those that the job requests. Return False to stop the generation
        (`StopType.WORD`).
        """

    def finished(self, result: Result) -> None:
        """The generation ended without an error."""

    def failed(self, error: LamellaError) -> None:
        """The generation was cancelled (CancelledError) or failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One generation: a tokenized prompt and how to continue it.

    Attributes:
        prompt: its tokens.
        params: how to continue it.
        grammar: the grammar of its text, instead of that of `params`.
        triggers: what its grammar begins with; None: it is that of the whole text.
        thinking: where its text has reasoning; None if it has none.
        sink: receives the tokens.
        n_probs: number of tokens at each position whose log-probabilities the sink gets; 0: none.
        post_sampling_probs: probabilities after the samplers, not the model's own.
        owner: the client and the request that it is for.
        slot: the slot that it wants, see `Slots`; -1: any.
        salt: only jobs of equal salts share prefixes and compiled grammars.
        sent: the tokens that its text begins with: another engine has sampled them for
            the same job. They are evaluated together, as those of a prompt, and each is checked.
    """

    prompt: tuple[int, ...]
    params: RequestParams
    sink: Sink
    grammar: GrammarSpec | None = None
    triggers: Triggers | None = None
    thinking: Thinking | None = None
    n_probs: int = 0
    post_sampling_probs: bool = False
    owner: Owner = NOBODY
    salt: str = ""
    slot: int = -1
    sent: Sequence[int] = ()

    @property
    def needs_logits(self) -> bool:
        """True if all logits are needed: the job requests the model's own probabilities."""
        return self.n_probs > 0 and not self.post_sampling_probs
