"""The tokens that may come next, as the samplers hand them on.

Knows no sampler. Tested by tests/model/test_sampling_steps.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from .softmax import F32Array, IdArray

_BLOCK: Final = 64  # logits that one maximum stands for when the largest few are looked for


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens and their logits; llama.cpp's llama_token_data_array. No sampler changes the arrays.

    `sorted`: by falling logit, equal ones by rising id (llama.cpp leaves their order to the C++
    library). `whole`: the ids are 0..n-1, each at its own place.
    """

    ids: IdArray  # [n], n >= 1
    logits: F32Array  # [n]
    sorted: bool = False
    whole: bool = False

    @property
    def n(self) -> int:
        return len(self.ids)

    def first(self, n: int) -> Candidates:
        """The first n, or all if there are fewer; as sorted as before."""
        return self if n >= self.n else Candidates(self.ids[:n], self.logits[:n], self.sorted)

    def pick(self, at: npt.NDArray[np.intp]) -> Candidates:
        """Those at the places `at`, in that order; not marked as sorted."""
        return Candidates(self.ids[at], self.logits[at])

    def top(self, k: int) -> Candidates:
        """The k largest (or all if there are fewer), sorted."""
        if self.sorted:
            return self.first(k)
        near = self._above(_lower_bound(self.logits, k))
        return Candidates(*_descending(near.ids, near.logits), sorted=True).first(k)

    def with_logits(self, logits: F32Array, *, keeps_order: bool = False) -> Candidates:
        """The same tokens with other logits [n]; `keeps_order`: sorted ones stay so."""
        return Candidates(self.ids, logits, self.sorted and keeps_order, self.whole)

    def locate(self, tokens: IdArray) -> tuple[IdArray, IdArray]:
        """(places of those of `tokens` [m] that are candidates, their indices in `tokens`)."""
        if self.whole:
            return tokens, np.arange(len(tokens))
        order = np.argsort(self.ids)
        near = np.searchsorted(self.ids, tokens, sorter=order)
        at = order[np.minimum(near, self.n - 1)]
        found = np.flatnonzero(self.ids[at] == tokens)
        return at[found], found

    def _above(self, bound: np.float32) -> Candidates:
        return self if bound == -np.inf else self.pick(np.flatnonzero(self.logits >= bound))


def _lower_bound(logits: F32Array, k: int) -> np.float32:
    """A value that at least k logits reach: the k-th largest of the maxima of blocks.

    Few others reach it: they lie in the blocks of the k largest maxima.
    """
    n_blocks = len(logits) // _BLOCK
    if k > n_blocks:
        return np.float32(-np.inf)
    maxima = logits[: n_blocks * _BLOCK].reshape(_BLOCK, n_blocks).max(axis=0)
    bound: np.float32 = np.partition(maxima, n_blocks - k)[n_blocks - k]
    return bound


def _descending(ids: IdArray, logits: F32Array) -> tuple[IdArray, F32Array]:
    """Both by falling logit, equal ones by rising id.

    One sort of 64-bit keys, logit above id: NumPy sorts 131,072 of them 20 times as fast as it
    sorts indices.
    """
    high = _falling((logits + np.float32(0)).view(np.uint32))  # + 0: -0 becomes 0
    keys = high.astype(np.uint64) << np.uint64(32) | ids.astype(np.uint64)
    keys.sort()
    low = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return low, _falling((keys >> np.uint64(32)).astype(np.uint32)).view(np.float32)


def _falling(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The bits of floats to integers that fall as the floats rise, and back: its own inverse."""
    positive = ~(bits.view(np.int32) >> 31)  # all bits set, or none
    flipped: npt.NDArray[np.uint32] = bits ^ (positive.view(np.uint32) & np.uint32(0x7FFFFFFF))
    return flipped
