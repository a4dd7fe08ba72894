"""The sampler of one sequence: builds its chain and chooses its next token.

Uses the vocabulary for DRY's breakers only. Knows no model, no requests and no grammar.
Tested by tests/model/test_sampling_chain.py and tests/model/test_sampling_top.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from typing import Any, Final, Protocol

import numpy as np

from ...base.errors import RequestError
from ...base.settings import NO_JIT
from ..batch import Mask
from ..outputs import Row, TopLogits
from .breakers import BreakerVocab, find_breakers
from .chain import Chain, NumpyChain, SamplerStep
from .dry import DryPenalty
from .infill import Infill, InfillVocab
from .native import NativeChain
from .params import SamplingParams
from .penalties import RepeatPenalties, logit_bias
from .softmax import F32Array, IdArray, rounded
from .surprise import AdaptiveP, Mirostat
from .temperature import dynamic_temperature, temperature
from .truncation import min_p, top_k, top_n_sigma, top_p, typical
from .xtc import Xtc


class SamplerVocab(BreakerVocab, InfillVocab, Protocol):
    """What samplers need of a vocabulary."""


_RANDOM_SEED: Final = 2**32 - 1  # LLAMA_DEFAULT_SEED, which is -1
_KEEP_THE_LARGEST: Final = frozenset(
    {"top_n_sigma", "top_k", "top_p", "min_p", "temperature", "mirostat", "adaptive_p"}
)


class Sampler:
    """Draws the next token of one sequence from its logits, as llama-server does.

    Call `accept` for every token of the prompt in order. Then call `sample` for each new token, and
    `accept` with its result. Not thread-safe.
    """

    params: SamplingParams  # those in effect
    seed: int  # the seed in use, in 0 .. 2**32 - 1
    n_top: int  # number of largest logits that `sample` needs; 0 if it needs all
    remembers: bool  # `accept` has an effect
    takes_largest: bool  # it returns the token of the largest logit, unless a bias lowers that

    def __init__(
        self, params: SamplingParams, vocab: SamplerVocab, *, is_constrained: bool = False
    ) -> None:
        """Build the chain, and compile kernels that are not cached unless LAMELLA_NO_JIT is set.

        `is_constrained`: there will be masks, so no step may choose a token by itself.

        Raises:
            RequestError: `logit_bias` has tokens outside of `vocab`, or bans all tokens.
            BackendError: a kernel cannot be compiled.
        """
        self.params = params = _as_float32(params)
        seed = params.seed % 2**32
        # never _RANDOM_SEED itself, so that the reported seed reproduces the text
        self.seed = secrets.randbelow(_RANDOM_SEED) if seed == _RANDOM_SEED else seed
        self._n_vocab = vocab.n_tokens
        params, names = _chain(params)
        may_end = not is_constrained
        chain = [(name, _step(name, params, vocab, self.seed, may_end)) for name in names]
        self._steps = [step for _, step in chain if step is not None]
        self._memories = [s for s in self._steps if isinstance(s, RepeatPenalties | DryPenalty)]
        self.remembers = bool(self._memories)
        # a token whose logit is lowered may be among the largest before
        n_lowered = _n_lowered(self._steps)
        self._n_before = 1 if n_lowered else 0  # steps before the choice of the largest
        active = {name for name, step in chain if step is not None}
        self._greedy = _is_greedy(params, active - {"logit_bias"} if n_lowered else active)
        n_kept = 1 if self._greedy else _n_kept(self._steps[self._n_before :])
        self.n_top = n_kept + n_lowered if n_kept else 0
        self.takes_largest = self._greedy and not is_constrained
        _ = self.chain  # made now, so that the first token is not slower

    @cached_property
    def chain(self) -> Chain:
        """The steps; of a greedy sampler, only the choice of the largest logit, after biases."""
        steps = self._steps
        if self._greedy:
            steps = [*steps[: self._n_before], partial(top_k, k=1)]
        # later draws depend on it: a single candidate takes a random number in llama-server, too,
        # but not if Mirostat or Adaptive-P draws it, with std::discrete_distribution
        learns = bool(self.params.mirostat) or "adaptive_p" in self.params.samplers
        if NO_JIT():
            return NumpyChain(steps, self.seed, draws_for_one=not learns)
        return NativeChain(steps, self._n_vocab, self.seed, draws_for_one=not learns)

    def accept(self, token: int) -> None:
        """Add a token of the sequence to the windows of penalties and DRY."""
        assert 0 <= token < self._n_vocab, token
        for memory in self._memories:
            memory.accept(token)

    def follow(self, other: Sampler) -> None:
        """Draw next the random numbers that `other` will draw next."""
        self.chain.follow(other.chain)

    def sample(self, logits: Row, mask: Mask | None = None) -> int:
        """Return the next token.

        Args:
            logits: raw logits [n_vocab], or at least the `n_top` largest of the allowed ones, or
                all of them if they are fewer. Not changed.
            mask: the allowed tokens; None: all.

        Raises:
            BackendError: the logits are invalid: NaN, +inf, or none above -inf.
            RequestError: mask, bias and penalties leave no token.
        """
        if isinstance(logits, TopLogits):  # chosen among the allowed tokens
            return self._sample_top(logits, mask)
        assert logits.shape == (self._n_vocab,), logits.shape
        assert logits.dtype == np.float32, logits.dtype
        return self.chain.draw(logits, mask=mask)

    def candidates(self) -> tuple[IdArray, F32Array]:
        """Return (ids, probabilities) [n] of the last `sample`, the most likely first.

        Candidates of probability 0 are omitted.
        """
        ids, weights = self.chain.last()
        probs = rounded(weights / weights.sum(dtype=np.float64))
        order = np.argsort(-probs, kind="stable")[: np.count_nonzero(probs)]
        return ids[order], probs[order]

    def _sample_top(self, top: TopLogits, mask: Mask | None) -> int:
        least = min(self.n_top, self._n_vocab) if mask is None else 1  # a mask may allow fewer
        assert 0 < least <= len(top.ids), (self.n_top, len(top.ids))
        return self.chain.draw(top.logits, ids=top.ids)


def _chain(p: SamplingParams) -> tuple[SamplingParams, tuple[str, ...]]:
    """Return the parameters in effect, and the names of the steps. Mirostat replaces the samplers
    but for the temperature. Adaptive-P is always last, as it learns from the draw."""
    if p.mirostat:
        return replace(p, dynatemp_range=0.0), ("logit_bias", "temperature", "mirostat")
    others = [name for name in p.samplers if name != "adaptive_p"]
    last = ["adaptive_p"] if "adaptive_p" in p.samplers else []
    return p, ("logit_bias", *others, *last)


def _step(
    name: str, p: SamplingParams, vocab: SamplerVocab, seed: int, may_end: bool
) -> SamplerStep | None:
    """Return the sampler `name` with a request's parameters, or None if they make it neutral."""
    match name:
        case "logit_bias" if p.logit_bias:
            return _bias_step(p.logit_bias, vocab.n_tokens)
        case "penalties" if p.repeat_last_n and p.penalizes:
            return RepeatPenalties(
                p.repeat_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
            )
        case "dry" if p.dry_multiplier and p.dry_penalty_last_n:
            breakers = find_breakers(vocab, p.dry_sequence_breakers)
            window = p.dry_allowed_length, p.dry_penalty_last_n
            return DryPenalty(p.dry_multiplier, p.dry_base, *window, breakers)
        case "top_n_sigma" if p.top_n_sigma > 0:
            return partial(top_n_sigma, n=p.top_n_sigma)
        case "top_k" if p.top_k > 0:
            return partial(top_k, k=p.top_k)
        case "typ_p" if p.typical_p < 1:
            return partial(typical, p=p.typical_p, min_keep=p.min_keep)
        case "top_p" if p.top_p < 1:
            return partial(top_p, p=p.top_p, min_keep=p.min_keep)
        case "min_p" if p.min_p > 0:
            return partial(min_p, p=p.min_p, min_keep=p.min_keep)
        case "xtc" if p.xtc_probability > 0 and p.xtc_threshold <= 0.5:
            return Xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, seed)
        case "temperature" if p.dynatemp_range > 0:
            span, exponent = p.dynatemp_range, p.dynatemp_exponent
            return partial(dynamic_temperature, t=p.temperature, delta=span, exponent=exponent)
        case "temperature" if p.temperature != 1:
            return partial(temperature, t=p.temperature)
        case "infill":
            end = vocab.eos if vocab.eot is None else vocab.eot
            is_banned = any(pair == (end, -np.inf) for pair in p.logit_bias)
            return Infill(vocab, may_end=may_end and not is_banned)
        case "mirostat":
            return Mirostat(p.mirostat, p.mirostat_tau, p.mirostat_eta, vocab.n_tokens)
        case "adaptive_p" if p.adaptive_target >= 0:
            return AdaptiveP(p.adaptive_target, p.adaptive_decay)
    return None


def _bias_step(pairs: tuple[tuple[int, float], ...], n_vocab: int) -> SamplerStep:
    """Return a step that adds biases. Biases of a token that occurs twice are added."""
    total: dict[int, float] = {}
    for token, bias in pairs:
        if not 0 <= token < n_vocab:
            raise RequestError(f"logit_bias: token {token}: must be 0 to {n_vocab - 1}")
        total[token] = total.get(token, 0.0) + bias
    banned = [token for token, bias in total.items() if bias == -np.inf]
    if len(banned) == n_vocab:
        raise RequestError(f"logit_bias bans all {n_vocab} tokens, at least one must be left")
    with np.errstate(over="ignore"):  # a large negative bias may become -inf, which bans the token
        biases = rounded(np.minimum(list(total.values()), np.finfo(np.float32).max))
    return partial(logit_bias, tokens=np.array(list(total), np.int64), biases=biases)


def _is_greedy(params: SamplingParams, active: set[str]) -> bool:
    """True if the chain always ends with the largest raw logit, so that it need not run."""
    fixed = params.temperature <= 0 and params.dynatemp_range <= 0
    return fixed and "temperature" in active and _KEEP_THE_LARGEST.issuperset(active)


def _n_lowered(steps: Sequence[SamplerStep]) -> int:
    """Return of how many tokens the first step lowers the logit; 0 if it also raises some."""
    first = steps[0] if steps else None
    if not isinstance(first, partial) or first.func is not logit_bias:
        return 0
    biases: F32Array = first.keywords["biases"]
    return len(biases) if (biases <= 0).all() else 0


def _n_kept(steps: Sequence[SamplerStep]) -> int:
    """Return k if the first step is top_k, else 0."""
    first = steps[0] if steps else None
    return first.keywords["k"] if isinstance(first, partial) and first.func is top_k else 0


def _as_float32(params: SamplingParams) -> SamplingParams:
    """Return the parameters with numbers rounded to float32, as llama.cpp computes with them."""
    values: dict[str, Any] = {field.name: getattr(params, field.name) for field in fields(params)}
    numbers = {name: float(np.float32(v)) for name, v in values.items() if isinstance(v, float)}
    return SamplingParams(**(values | numbers))
