"""A job inside the engine: its tokens so far, its pages in the KV pool, its times.

`policy.py` decides what happens to it. Tested by tests/runtime/test_engine.py.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from ...base.errors import BackendError
from ...model.batch import F32Array
from ...model.guide import LazyMatcher, Matcher
from ...model.kv_prefix import Node, PrefixIdentity
from ...model.kv_sequence import KVSequence
from ...model.page_files import Fetch
from ...model.sampling import Sampler, SamplingParams
from ..params import GenerationParams
from ..speculative_params import SpeculativeParams
from .job import Job, Result, StopType, Timings
from .policy import n_predict_of
from .thinking import ThinkingTracker

if TYPE_CHECKING:
    from .drafts.guesser import Guesser

_NUMBERS: Final = count()  # of jobs


class RunningJob(NamedTuple):
    """What a running job does: its parameters, and its tokens so far.

    Attributes:
        id: its number, in the order of submissions.
        slot: the slot that it has.
        n_evaluated: tokens of the prompt that are evaluated, or were in the cache.
        n_left: most tokens that may follow.
        seed: the seed in use.
        seconds: its age.
    """

    id: int
    slot: int
    params: GenerationParams
    sampling: SamplingParams
    speculative: SpeculativeParams
    seed: int
    n_prompt: int
    n_evaluated: int
    n_cached: int
    n_predicted: int
    n_left: int
    has_new_line: bool
    seconds: float


class Times(NamedTuple):
    """Seconds of time.perf_counter; 0: not yet."""

    submitted: float
    start: float
    first_token: float
    end: float


class Ticket:
    """A submitted job. For callers of the engine it is opaque: they pass it to `Engine.cancel`.

    All fields belong to the engine's thread, except `settled` and `paused`, which the queue's lock
    guards.
    """

    __slots__ = (
        "decoding",
        "fed_from",
        "fetch",
        "guesser",
        "has_new_line",
        "id",
        "identity",
        "is_sound",
        "lazy",
        "lora_scales",
        "matcher",
        "n_cached",
        "n_done",
        "n_draft",
        "n_draft_accepted",
        "n_dropped",
        "n_most",
        "n_probs",
        "n_prompt",
        "n_top",
        "owner",
        "params",
        "paused",
        "post_sampling_probs",
        "sampler",
        "sampling",
        "sent",
        "seq",
        "settled",
        "shared",
        "sink",
        "slot",
        "speculative",
        "t_end",
        "t_first",
        "t_last",
        "t_start",
        "t_submitted",
        "thinking",
        "tokens",
        "truncated",
    )

    def __init__(
        self,
        job: Job,
        sampler: Sampler,
        matcher: Matcher | None = None,
        thinking: ThinkingTracker | None = None,
        lora_scales: F32Array | None = None,
    ) -> None:
        self.id = next(_NUMBERS)
        self.sink = job.sink
        self.sampler = sampler
        self.matcher = matcher  # follows the grammar of the text; None if it is free
        self.lazy: LazyMatcher | None = None  # searches for the begin of the grammar
        self.thinking = thinking  # follows the reasoning of the text; None if it has none
        self.owner = job.owner
        self.slot = job.slot  # once it has started, the one that it got
        self.params = job.params.generation
        self.speculative = job.params.speculative
        self.guesser: Guesser | None = None  # made for its first guess
        self.fed_from = 0  # from this length on, a device may know its tokens by itself
        self.lora_scales = lora_scales  # of its adapters; None if it has none
        used = () if lora_scales is None else tuple(s for _, s in self.params.lora or ())
        self.identity = PrefixIdentity(job.salt, used)
        self.sampling = job.params.sampling
        self.n_probs = job.n_probs
        self.post_sampling_probs = job.post_sampling_probs
        # the number of largest logits that are needed; 0: all
        self.n_top = 0 if job.needs_logits else sampler.n_top
        self.n_prompt = len(job.prompt)
        self.sent = job.sent  # the first tokens of the text, as another engine has sampled them
        self.tokens = list(job.prompt)  # and the predicted ones: a preempted job recomputes all
        self.n_draft = self.n_draft_accepted = 0  # guesses that were checked, and came true
        self.n_dropped = 0  # tokens that shifts of the context removed
        self.seq: KVSequence | None = None  # None while the job waits
        self.shared: Node | None = None  # the last page that later jobs can share
        self.fetch: Fetch | None = None  # of pages of its prefix from files; None: not begun
        self.n_cached = 0  # prompt tokens that needed no evaluation at the first start
        self.n_done = 0  # evaluated tokens; not updated while decoding
        self.n_most = 0  # tokens at which a limit ends the job
        self.decoding = False  # all tokens but the last one are evaluated
        self.is_sound = True  # no step with its tokens failed: its cells can be shared
        self.has_new_line = False
        self.truncated = False
        self.settled = False  # finished, failed or cancelled
        self.paused = False  # gets no tokens, as its reader is slow
        # time.perf_counter at the first chunk, the first and the last token, the end; 0: not yet
        self.t_start = self.t_first = self.t_last = self.t_end = 0.0
        self.t_submitted = time.perf_counter()

    @property
    def times(self) -> Times:
        """When its parts began and ended. Any thread may ask."""
        return Times(self.t_submitted, self.t_start, self.t_first, self.t_end)

    @property
    def running(self) -> RunningJob:
        """What it does while it runs. Any thread may ask: the numbers are of about one moment."""
        n_predicted = self.n_predicted
        n_evaluated = self.n_prompt if n_predicted else min(self.n_done, self.n_prompt)
        return RunningJob(
            self.id,
            self.slot,
            self.params,
            self.sampling,
            self.speculative,
            self.sampler.seed,
            self.n_prompt,
            n_evaluated,
            min(self.n_cached, self.n_prompt),
            n_predicted,
            max(self.n_most - self.n_prompt - n_predicted, 0),
            self.has_new_line,
            time.perf_counter() - self.t_submitted,
        )

    @property
    def n_predicted(self) -> int:
        """Number of tokens sampled so far."""
        return len(self.tokens) + self.n_dropped - self.n_prompt

    @property
    def sent_left(self) -> Sequence[int]:
        """The tokens of `sent` that are not sampled yet."""
        return self.sent[self.n_predicted :] if self.sent else ()

    @property
    def n_reasoning(self) -> int:
        """Number of tokens of reasoning sampled so far."""
        return 0 if self.thinking is None else self.thinking.n_tokens

    @property
    def feeds(self) -> bool:
        """True if a device is likely to know its next token by itself."""
        return self.sampler.takes_largest and len(self.tokens) >= self.fed_from

    @property
    def marks(self) -> Collection[int] | None:
        """The lengths of its prompt that others can share; None: all full pages."""
        states = None if self.seq is None else self.seq.states
        return None if states is None else states.marks

    @property
    def n_evaluated(self) -> int:
        """Number of tokens whose keys and values the sequence holds."""
        return len(self.tokens) - 1 if self.decoding else self.n_done

    def enter(self, seq: KVSequence, n_cached: int, now: float, n_ctx: int) -> None:
        """Start or restart with a sequence that will hold the first `n_cached` tokens, in a context
        of `n_ctx`."""
        n_predict = n_predict_of(self.params, n_ctx)
        n_last = self.n_prompt - self.n_dropped + n_predict
        self.n_most = n_ctx if n_predict < 0 else min(n_last, n_ctx)
        self.seq = seq
        self.n_done = n_cached
        if not self.t_start:
            self.t_start = now
            self.n_cached = n_cached

    def leave(self) -> None:
        """Free the pages. Tokens, sampler, matcher, thinking and times stay for a restart."""
        if self.seq is not None:
            self.seq.free()
        self.seq = self.shared = self.fetch = None
        self.decoding = False
        self.n_done = 0

    def check_sent(self, token: int) -> None:
        """Check that the last token is that of `sent`, if it has one. Raises BackendError."""
        n = self.n_predicted
        if n <= len(self.sent) and self.sent[n - 1] != token:
            raise BackendError(
                f"token {n} of the text is {token}, and {self.sent[n - 1]} where the text began: "
                "they differ, so it cannot go on here"
            )

    def shift(self, tokens: list[int]) -> None:
        """Go on with fewer tokens, after `leave`."""
        self.n_dropped += len(self.tokens) - len(tokens)
        self.tokens = tokens
        self.truncated = True

    def result(self, stop_type: StopType) -> Result:
        """The result for the sink."""
        complete = None
        if self.matcher is not None:  # a stop string is cut off with the text after it
            complete = stop_type is not StopType.WORD and self.matcher.is_complete
        return Result(
            stop_type=stop_type,
            complete=complete,
            loosened=() if self.matcher is None else self.matcher.loosened,
            n_prompt=self.n_prompt,
            n_cached=self.n_cached,
            n_predicted=self.n_predicted,
            n_reasoning=self.n_reasoning,
            truncated=self.truncated,
            seed=self.sampler.seed,
            timings=Timings(
                cache_n=self.n_cached,
                prompt_n=self.n_prompt - self.n_cached,
                prompt_ms=1e3 * (self.t_first - self.t_start),
                predicted_n=self.n_predicted,
                predicted_ms=1e3 * (self.t_end - self.t_first),
                draft_n=self.n_draft,
                draft_n_accepted=self.n_draft_accepted,
            ),
        )
