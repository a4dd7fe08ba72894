"""One node of an op, with its data, and what such nodes are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from packed_run import packed
from reference_run import DECODED, Array, data, leaf, normal, place

from lamella.graph import GGMLType, Tensor

F32, F16, BF16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0
FLOATS: Final = (F32, F16, BF16)
WEIGHT_TYPES: Final = tuple(DECODED)

Tokens = Sequence[int]
Build = Callable[[Tokens], Tensor]


@dataclass(frozen=True)
class OpCase:
    """One node, with its data.

    `build(tokens)` makes it for some of `n_tokens` tokens, which are along dimension `axis` of the
    result (None: the op has no tokens). `limit` bounds the mean square error against the reference,
    relative to the mean square of the result; 0: equal bits. `timed` cases are large enough to
    time; only those with few elements are tested for their bits.
    """

    name: str
    build: Build
    axis: int | None = 1
    n_tokens: int = 5
    limit: float = 1e-11
    timed: bool = False

    def node(self, tokens: Tokens | None = None) -> Tensor:
        """The node for these tokens, all by default."""
        return self.build(list(range(self.n_tokens)) if tokens is None else tokens)

    def __str__(self) -> str:
        return self.name


@cache
def numbers(*shape: int, seed: int = 0) -> Array:
    """Normal random numbers; the first tokens are the same in every call."""
    return normal(*shape, seed=seed)


@cache
def weights(type: GGMLType, *shape: int, seed: int = 1) -> Tensor:
    """Weights of a type, made once: no kernel may write to them. Many rows include equal ones."""
    *outer, n, k = shape
    n_own = n if n % 64 else 64  # quantizing takes long
    few = leaf(normal(*outer, n_own, k, seed=seed), type)
    if n_own == n:
        return few
    many = Tensor(type, shape[::-1])
    place(many)
    data(many)[...] = np.tile(data(few), (n // n_own, 1))
    return many


@cache
def packed_weights(type: GGMLType, *shape: int) -> Tensor:
    """The same weights, repacked by the CPU."""
    return packed(weights(type, *shape))


def rows(tokens: Tokens, k: int, n_tokens: int = 5, type: GGMLType = F32, seed: int = 0) -> Tensor:
    """Rows of some tokens: [k, len(tokens)]."""
    return leaf(numbers(n_tokens, k, seed=seed)[tokens], type)
