"""The candidates for the next token, which samplers filter and change.

Knows no samplers. Tested by tests/model/test_sampling_steps.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from .softmax import F32Array, IdArray

_BLOCK: Final = 64  # logits in a block, of which only the maximum is compared first


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens and their logits: llama.cpp's llama_token_data_array. The arrays are never changed."""

    ids: IdArray  # [n], n >= 1
    logits: F32Array  # [n]
    # by descending logit, ties by ascending id (in llama.cpp, the C++ library orders ties)
    sorted: bool = False
    whole: bool = False  # ids[i] is i for all i

    @property
    def n(self) -> int:
        return len(self.ids)

    def first(self, n: int) -> Candidates:
        """Return the first n candidates, or all if there are fewer. Keeps `sorted`."""
        return self if n >= self.n else Candidates(self.ids[:n], self.logits[:n], self.sorted)

    def pick(self, at: npt.NDArray[np.intp]) -> Candidates:
        """Return the candidates at the indices `at`, in that order, not marked as sorted."""
        return Candidates(self.ids[at], self.logits[at])

    def top(self, k: int) -> Candidates:
        """Return the k largest candidates (all if there are fewer), sorted."""
        if self.sorted:
            return self.first(k)
        near = self._above(_lower_bound(self.logits, k))
        return Candidates(*_descending(near.ids, near.logits), sorted=True).first(k)

    def with_logits(self, logits: F32Array, *, keeps_order: bool = False) -> Candidates:
        """Return the same tokens with other logits [n]. `keeps_order`: their order is the same."""
        return Candidates(self.ids, logits, self.sorted and keeps_order, self.whole)

    def locate(self, tokens: IdArray) -> tuple[IdArray, IdArray]:
        """Find those of `tokens` [m] that are candidates.

        Returns:
            (their indices among the candidates, their indices in `tokens`).
        """
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
    """Return the k-th largest of the blocks' maxima, or -inf if there are fewer than k blocks.

    At least k logits reach this bound. They are usually in k blocks, so few other logits reach it.
    """
    n_blocks = len(logits) // _BLOCK
    if k > n_blocks:
        return np.float32(-np.inf)
    maxima = logits[: n_blocks * _BLOCK].reshape(_BLOCK, n_blocks).max(axis=0)
    bound: np.float32 = np.partition(maxima, n_blocks - k)[n_blocks - k]
    return bound


def _descending(ids: IdArray, logits: F32Array) -> tuple[IdArray, F32Array]:
    """Return both arrays by descending logit, ties by ascending id.

    Sorts 64-bit keys, with the logit in the high half and the id in the low half. For 131,072 keys
    this is 20 times as fast as `argsort`.
    """
    high = _descending_bits((logits + np.float32(0)).view(np.uint32))  # + 0 turns -0 into 0
    keys = high.astype(np.uint64) << np.uint64(32) | ids.astype(np.uint64)
    keys.sort()
    low = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return low, _descending_bits((keys >> np.uint64(32)).astype(np.uint32)).view(np.float32)


def _descending_bits(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Map the bits of floats to integers in the opposite order. The function is its own inverse."""
    positive = ~(bits.view(np.int32) >> 31)  # all bits set, or none
    flipped: npt.NDArray[np.uint32] = bits ^ (positive.view(np.uint32) & np.uint32(0x7FFFFFFF))
    return flipped
