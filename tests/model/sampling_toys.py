"""For tests of samplers: a vocabulary with given texts, random requests and logits, slow twins.

The twins are plain functions on lists of (id, logit) in float64, written from the samplers'
sources.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lamella.base.errors import LamellaError
from lamella.model.outputs import TopLogits
from lamella.model.sampling import DEFAULT_SAMPLERS, Sampler, SamplingParams
from lamella.model.sampling.candidates import Candidates

F32Array = npt.NDArray[np.float32]
Row = list[tuple[int, float]]


class ToyVocab:
    """A vocabulary with given texts. Tokenizes greedily, longest first, and drops other bytes."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self.texts = list(texts)
        self.n_tokens = len(self.texts)
        self.n_decoded = 0
        self.eog: frozenset[int] = frozenset()
        self.eos: int | None = None
        self.eot: int | None = None

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        assert not add_special
        assert not parse_special
        rest, found = text.encode(), []
        while rest:
            fitting = [i for i, t in enumerate(self.texts) if t and rest.startswith(t)]
            best = max(fitting, key=lambda i: len(self.texts[i]), default=None)
            if best is not None:
                found.append(best)
            rest = rest[1 if best is None else len(self.texts[best]) :]
        return found

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        assert special
        self.n_decoded += 1
        return b"".join(self.texts[i] for i in ids).decode(errors="replace")

    def piece(self, token: int, /, *, special: bool = False) -> bytes:
        return self.texts[token]


def letters(n: int, **texts: str) -> ToyVocab:
    """Return n tokens that no breaker matches, except for given texts: letters(9, t3=":")."""
    return ToyVocab(texts.get(f"t{i}", chr(0x4E00 + i)).encode() for i in range(n))


def array(values: Iterable[float]) -> F32Array:
    return np.array(list(values), np.float32)


SIZES = [1, 2, 3, 15, 16, 17, 40, 255, 257, 1000, 1023, 1024, 1025, 3001]
VOCABS = {n: letters(n, t8=":") for n in SIZES}

VALUES: dict[str, Sequence[Any]] = {
    "temperature": [0, 0.1, 0.8, 1.7, 30.0],
    "dynatemp_range": [0, 0, 0.3, 2.0],
    "dynatemp_exponent": [1, 0.5, 2.5, -1],
    "top_k": [0, 1, 2, 5, 40, 200, 300, 2**31 - 1],
    "top_p": [0, 0.1, 0.5, 0.95, 0.9999, 1],
    "min_p": [0, 0.001, 0.05, 0.7, 1],
    "typical_p": [-1, 0, 0.3, 0.9, 1],
    "top_n_sigma": [-1, 0.01, 1, 2.5, 100],
    "xtc_probability": [0, 0.3, 1],
    "xtc_threshold": [0, 0.01, 0.1, 0.5],
    "repeat_last_n": [0, 1, 5, 64, 10**6],
    "repeat_penalty": [1, 1.3, 0.7, 3e38],
    "presence_penalty": [0, 0.5, -2],
    "frequency_penalty": [0, 0.25, -0.1, 3e38],
    "dry_multiplier": [0, 0.8, -1, 3e38],
    "dry_allowed_length": [0, 1, 2],
    "dry_penalty_last_n": [3, 64],
    "min_keep": [0, 0, 1, 3, 50, 10**6],
}


def random_params(rng: random.Random, n_vocab: int) -> SamplingParams:
    values = {name: rng.choice(choices) for name, choices in VALUES.items()}
    values["samplers"] = [rng.choice(DEFAULT_SAMPLERS) for _ in range(rng.randrange(7))]
    if rng.random() < 0.3:
        values["samplers"] = list(DEFAULT_SAMPLERS)
    if n_vocab > 1 and rng.random() < 0.4:
        tokens = [rng.randrange(1, n_vocab) for _ in range(rng.choice([1, 3, 20]))]
        values["logit_bias"] = [(t, rng.choice([-math.inf, 1.5, -3.0, 3e38])) for t in tokens]
    return SamplingParams(seed=rng.randrange(2**32 - 1), **values)


def random_logits(rng: random.Random, n: int) -> F32Array:
    numpy = np.random.default_rng(rng.randrange(2**32))
    logits = numpy.standard_normal(n) * rng.choice([0.0, 0.1, 3.0, 3.0, 40.0, 1e30])
    if rng.random() < 0.4:
        logits = np.round(logits)  # makes many equal, and some -0
    for share in (0.1, 0.99):
        if rng.random() < 0.15:
            logits[numpy.random(n) < share] = -math.inf
    if rng.random() < 0.2:
        logits.sort()
    if rng.random() < 0.02:
        logits[rng.randrange(n)] = rng.choice([np.nan, math.inf])
    return logits.astype(np.float32)


def outcome(s: Sampler, logits: F32Array | TopLogits) -> int | str:
    """Return the token, or the error as text."""
    try:
        return s.sample(logits)
    except LamellaError as e:
        return f"{type(e).__name__}: {e}"


def candidates(*logits: float) -> Candidates:
    """Return the candidates of a whole vocabulary, as at the start of a chain."""
    return Candidates(np.arange(len(logits)), array(logits), whole=True)


def row_of(c: Candidates) -> Row:
    return list(zip(c.ids.tolist(), c.logits.tolist(), strict=True))


def ids_of(c: Candidates) -> list[int]:
    ids: list[int] = c.ids.tolist()
    return ids


def falling(row: Row) -> Row:
    return sorted(row, key=lambda entry: (-entry[1], entry[0]))


def probabilities(row: Row) -> list[float]:
    top = max(logit for _, logit in row)
    weights = [math.exp(logit - top) for _, logit in row]
    total = math.fsum(weights)
    return [w / total for w in weights]


def slow_top_k(row: Row, k: int) -> Row:
    return falling(row)[:k]


def slow_top_p(row: Row, p: float, min_keep: int = 0) -> Row:
    row, kept, total = falling(row), [], 0.0
    for entry, prob in zip(row, probabilities(row), strict=True):
        kept.append(entry)
        total += prob
        if total >= p and len(kept) >= min_keep:
            break
    return kept


def slow_min_p(row: Row, p: float, min_keep: int = 0) -> Row:
    top = max(probabilities(row))
    likely = [e for e, prob in zip(row, probabilities(row), strict=True) if prob >= p * top]
    return likely if len(likely) >= min_keep else falling(row)[:min_keep]


def slow_typical(row: Row, p: float, min_keep: int = 0) -> Row:
    row = falling(row)
    probs = probabilities(row)
    entropy = -math.fsum(q * math.log(q) for q in probs)
    order = sorted(range(len(row)), key=lambda i: abs(-math.log(probs[i]) - entropy))
    kept, total = [], 0.0
    for i in order:
        kept.append(row[i])
        total += probs[i]
        if total > p and len(kept) >= min_keep:
            break
    return kept


def slow_top_n_sigma(row: Row, n: float) -> Row:
    logits = [logit for _, logit in row if logit > -math.inf]
    mean = math.fsum(logits) / len(logits)
    sigma = math.sqrt(math.fsum((x - mean) ** 2 for x in logits) / len(logits))
    least = max(logits) - n * sigma
    return [(i, logit if logit >= least else -math.inf) for i, logit in row]


def slow_xtc(row: Row, threshold: float, min_keep: int = 0) -> Row:
    row = falling(row)
    n_top = sum(prob >= threshold for prob in probabilities(row))
    kept = row[n_top - 1 :] if n_top > 1 else row
    return kept if len(kept) >= min_keep else row


def slow_dynamic_temperature(row: Row, t: float, delta: float, exponent: float) -> Row:
    row = falling(row)
    entropy = -math.fsum(q * math.log(q) for q in probabilities(row) if q > 0)
    low, high = max(0.0, t - delta), t + delta
    dynamic = low + (high - low) * (entropy / math.log(len(row))) ** exponent
    return [(i, logit / dynamic) for i, logit in row]


def slow_penalties(
    row: Row, window: Sequence[int], repeat: float, frequency: float, presence: float
) -> Row:
    changed = []
    for i, before in row:
        count = window.count(i)
        logit = before
        if count:
            logit = logit * repeat if logit <= 0 else logit / repeat
            logit -= count * frequency + presence
        changed.append((i, logit))
    return changed
