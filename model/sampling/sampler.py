"""The chain of samplers of one sequence, and the choice of its next token.

Knows a vocabulary only as far as DRY's breakers need it; no model, no requests, no grammar.
Tested by tests/model/test_sampling_chain.py and tests/model/test_sampling_top.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property, partial
from typing import Any, Final, TypeAlias

import numpy as np

from ...base.errors import RequestError
from ...base.settings import NO_JIT
from ..outputs import Row, TopLogits
from .breakers import BreakerVocab, find_breakers
from .chain import Chain, NumpyChain, Step, broken
from .dist import MersenneTwister
from .dry import Dry
from .native import NativeChain
from .params import SamplingParams
from .penalties import RepeatPenalties, logit_bias
from .softmax import F32Array, IdArray, rounded
from .temperature import dynamic_temperature, temperature
from .truncation import min_p, top_k, top_n_sigma, top_p, typical
from .xtc import Xtc

SamplerVocab: TypeAlias = BreakerVocab

_RANDOM_SEED: Final = 2**32 - 1  # LLAMA_DEFAULT_SEED, which is -1
_KEEP_THE_LARGEST: Final = frozenset({"top_n_sigma", "top_k", "top_p", "min_p", "temperature"})


class Sampler:
    """Draws the next token of one sequence from its logits, as llama-server does.

    Not for several threads. `accept` every token, those of the prompt too, in order; then
    `sample`, and `accept` what came out if it is taken.
    """

    seed: int  # the seed really used, in 0 .. 2**32 - 1
    n_top: int  # so many of the largest logits are as good as all; 0: all are needed

    def __init__(self, params: SamplingParams, vocab: SamplerVocab) -> None:
        """Compiles kernels if need be, unless LAMELLA_NO_JIT.

        Raises RequestError if `logit_bias` names tokens that `vocab` lacks, or bans all, and
        BackendError if a kernel cannot be compiled.
        """
        params = _as_float32(params)
        seed = params.seed % 2**32
        # never the one that asks for a random seed: the reported seed repeats the text
        self.seed = secrets.randbelow(_RANDOM_SEED) if seed == _RANDOM_SEED else seed
        self._n_vocab = vocab.n_tokens
        names = ("logit_bias", *params.samplers)
        chain = [(name, _step(name, params, vocab, self.seed)) for name in names]
        self._steps = [step for _, step in chain if step is not None]
        self._memories = [s for s in self._steps if isinstance(s, RepeatPenalties | Dry)]
        self._greedy = _is_greedy(params, {name for name, step in chain if step is not None})
        self.n_top = 1 if self._greedy else _n_kept(self._steps)
        self._rng = MersenneTwister(self.seed)
        self._best: int | None = None  # of the last greedy choice
        if not self._greedy:
            _ = self._chain  # what it costs to make is not paid by the first token

    @cached_property
    def _chain(self) -> Chain:
        return NumpyChain(self._steps) if NO_JIT() else NativeChain(self._steps, self._n_vocab)

    def accept(self, token: int) -> None:
        """Takes note of a token of the sequence; penalties and DRY look at the last ones."""
        assert 0 <= token < self._n_vocab, token
        for memory in self._memories:
            memory.accept(token)

    def sample(self, logits: Row) -> int:
        """The next token, from raw logits [n_vocab] or, if `n_top` allows, the largest of them:
        the token is the same. They stay as they are.

        Raises BackendError if the logits are broken (NaN, +inf, or none above -inf), and
        RequestError if bias and penalties leave no token.
        """
        if isinstance(logits, TopLogits):
            return self._sample_top(logits)
        assert logits.shape == (self._n_vocab,), logits.shape
        assert logits.dtype == np.float32, logits.dtype
        if self._greedy:
            return self._sample_greedily(logits)
        # drawn even for a single candidate, as llama-server does: the next tokens depend on it
        return self._chain.draw(logits, self._rng.uniform_double())

    def candidates(self) -> tuple[IdArray, F32Array]:
        """(ids, probabilities) [n] that the last `sample` drew from, the likeliest first.

        Those of probability 0 are left out.
        """
        if self._greedy:
            assert self._best is not None, "sample() was never called"
            return np.array([self._best]), np.ones(1, np.float32)
        ids, weights = self._chain.last()
        probs = rounded(weights / weights.sum(dtype=np.float64))
        order = np.argsort(-probs, kind="stable")[: np.count_nonzero(probs)]
        return ids[order], probs[order]

    def _sample_top(self, top: TopLogits) -> int:
        assert 0 < min(self.n_top, self._n_vocab) <= len(top.ids), (self.n_top, len(top.ids))
        if self._greedy:
            if not np.isfinite(top.logits[0]):
                raise broken(top.logits)
            self._best = int(top.ids[0])
            return self._best
        return self._chain.draw(top.logits, self._rng.uniform_double(), top.ids)

    def _sample_greedily(self, logits: F32Array) -> int:
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            raise broken(logits)
        self._best = best
        return best


def _step(name: str, p: SamplingParams, vocab: SamplerVocab, seed: int) -> Step | None:
    """The sampler `name` with the parameters of a request, or None where they make it neutral."""
    match name:
        case "logit_bias" if p.logit_bias:
            return _bias_step(p.logit_bias, vocab.n_tokens)
        case "penalties" if p.repeat_last_n and _penalises(p):
            return RepeatPenalties(
                p.repeat_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
            )
        case "dry" if p.dry_multiplier and p.dry_penalty_last_n:
            breakers = find_breakers(vocab, p.dry_sequence_breakers)
            window = p.dry_allowed_length, p.dry_penalty_last_n
            return Dry(p.dry_multiplier, p.dry_base, *window, breakers)
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
    return None


def _penalises(p: SamplingParams) -> bool:
    return p.repeat_penalty != 1 or p.frequency_penalty != 0 or p.presence_penalty != 0


def _bias_step(pairs: tuple[tuple[int, float], ...], n_vocab: int) -> Step:
    """A token that is given twice gets both biases."""
    total: dict[int, float] = {}
    for token, bias in pairs:
        if not 0 <= token < n_vocab:
            raise RequestError(f"logit_bias: token {token}, allowed: 0 to {n_vocab - 1}")
        total[token] = total.get(token, 0.0) + bias
    banned = [token for token, bias in total.items() if bias == -np.inf]
    if len(banned) == n_vocab:
        raise RequestError(f"logit_bias bans all {n_vocab} tokens, one at least must be left")
    with np.errstate(over="ignore"):  # far below zero is as good as banned
        biases = rounded(np.minimum(list(total.values()), np.finfo(np.float32).max))
    return partial(logit_bias, tokens=np.array(list(total), np.int64), biases=biases)


def _is_greedy(params: SamplingParams, active: set[str]) -> bool:
    """Whether the chain can only end at the largest raw logit: then nothing else is computed."""
    fixed = params.temperature <= 0 and params.dynatemp_range <= 0
    return fixed and "temperature" in active and _KEEP_THE_LARGEST.issuperset(active)


def _n_kept(steps: Sequence[Step]) -> int:
    """How many tokens the first step keeps if it looks at nothing but which are the largest."""
    first = steps[0] if steps else None
    return first.keywords["k"] if isinstance(first, partial) and first.func is top_k else 0


def _as_float32(params: SamplingParams) -> SamplingParams:
    """The numbers as a float32 holds them: llama.cpp compares and computes with those."""
    values: dict[str, Any] = {field.name: getattr(params, field.name) for field in fields(params)}
    numbers = {name: float(np.float32(v)) for name, v in values.items() if isinstance(v, float)}
    return SamplingParams(**(values | numbers))
