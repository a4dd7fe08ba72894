"""The sampler for texts between a prefix and a suffix: it ends them when the model is unsure.

Knows the texts of tokens. Tested by tests/model/test_sampling_infill.py.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from .candidates import Candidates
from .softmax import F32Array, IdArray, softmax

N_INFILL_MAX: Final = 512  # most likely candidates: each is compared with each
LEAST: Final = 0.2  # probability of a token with those that begin with it
NO_TOKEN: Final = -1


class InfillVocab(Protocol):
    """The parts of a vocabulary that are needed here. Hashable by identity."""

    @property
    def n_tokens(self) -> int: ...
    @property
    def eog(self) -> Collection[int]: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def eot(self) -> int | None: ...
    def piece(self, token: int, /, *, special: bool = False) -> bytes: ...


class TokenTexts:
    """The texts of all tokens as arrays.

    Attributes:
        bytes: of all texts, one after the other.
        ends: where each token's text ends in `bytes` [n_tokens + 1]; the first is 0.
        ends_text: 1 for tokens that end a text [n_tokens].
    """

    def __init__(self, vocab: InfillVocab) -> None:
        texts = [vocab.piece(id) for id in range(vocab.n_tokens)]
        self.bytes = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
        self.ends: IdArray = np.array([0, *accumulate(map(len, texts))], np.int64)
        self.ends_text: npt.NDArray[np.uint8] = np.zeros(vocab.n_tokens, np.uint8)
        self.ends_text[list(vocab.eog)] = 1

    def of(self, id: int) -> bytes:
        """The text of a token."""
        return self.bytes[self.ends[id] : self.ends[id + 1]].tobytes()


_KNOWN: Final[WeakKeyDictionary[InfillVocab, TokenTexts]] = WeakKeyDictionary()


class Infill:
    """Keeps tokens that the model is sure of, or only those that end the text
    (llama_sampler_infill_apply).

    A token counts with the tokens that begin with its text. If none is likely then, only the end
    token is left, if `may_end`.
    """

    def __init__(self, vocab: InfillVocab, *, may_end: bool) -> None:
        if vocab not in _KNOWN:
            _KNOWN[vocab] = TokenTexts(vocab)
        self.texts = _KNOWN[vocab]
        end = vocab.eos if vocab.eot is None else vocab.eot
        self.end = end if may_end and end is not None else NO_TOKEN

    def __call__(self, c: Candidates) -> Candidates:
        c = c.top(N_INFILL_MAX)
        probs, ends = softmax(c.logits), self.texts.ends_text[c.ids] == 1
        of_ends, of_text = _sum(probs[ends]), _sum(probs[~ends])
        if np.float32(3) * of_ends * np.float32(c.n) > of_text:
            return c.pick(np.flatnonzero(ends))
        probs = self._merged(c.ids, c.logits, probs)
        kept = ends | (probs >= np.float32(LEAST))
        n_text = int(np.count_nonzero(kept & ~ends))
        if not n_text:
            return self._ended(c, ends & (c.logits > -np.inf))
        least = np.float32(1) / np.float32(n_text + 1)
        kept &= ends | (probs / _sum(probs[kept]) >= least)
        return c.pick(np.flatnonzero(kept))

    def _ended(self, c: Candidates, ends: npt.NDArray[np.bool_]) -> Candidates:
        """The end token alone. If there is none, the others that end the text, else all."""
        if self.end != NO_TOKEN:
            return Candidates(np.array([self.end]), np.array([1], np.float32))
        return c.pick(np.flatnonzero(ends)) if ends.any() else c

    def _merged(self, ids: IdArray, logits: F32Array, probs: F32Array) -> F32Array:
        """The probabilities, those of tokens with a common begin added to the likelier one."""
        texts, probs = [self.texts.of(int(id)) for id in ids], probs.copy()
        gone = logits == -np.inf
        for i, text in enumerate(texts):
            for j, other in enumerate(texts):
                if gone[i]:
                    break
                if i == j or gone[j] or not text or not other.startswith(text):
                    continue
                into, of = (j, i) if probs[j] > probs[i] else (i, j)
                probs[into] += probs[of]
                probs[of], gone[of] = 0, True
        return probs


def _sum(x: F32Array) -> np.float32:
    """The sum in float32, in order."""
    total: np.float32 = np.add.accumulate(np.append(np.float32(0), x))[-1]
    return total
