"""Encoding of IQ4_NL, which `gguf.quants` can only decode, with the bits of ggml.

A value is a factor times one of 16 levels. As in ggml-quants.c, quantize_row_iq4_nl_ref: the levels
are those nearest to the values if the one furthest from 0 gets the lowest level; then the factor
has the least squared error, weighted by the squared values. Sums are float32, in order.
Tested by tests/kernels/test_iq4_nl.py.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from .values import IQ4_NL

LEVELS: Final = np.array(IQ4_NL, np.float32)
SMALLEST: Final = 1e-15  # a block whose values are all smaller becomes zeros
_N: Final = 32  # elements of a block

Values = npt.NDArray[np.float32]


def encode_iq4_nl(values: Values) -> npt.NDArray[np.uint8]:
    """Rows of blocks; the last axis of `values` is a multiple of 32 elements."""
    blocks = values.reshape(-1, _N)
    with np.errstate(all="ignore"):
        furthest = _furthest(blocks)
        d = furthest / LEVELS[0]
        numbers = _nearest(blocks * (np.float32(1) / d)[:, None])
        factors = _factors(blocks, LEVELS[numbers])
        # NaN is not below the limit
        zero = np.abs(furthest) < np.float32(SMALLEST)
        factors[zero], numbers[zero] = 0, 0
        packed = np.empty((len(blocks), 2 + _N // 2), np.uint8)
        packed[:, :2] = factors.astype("<f2")[:, None].view(np.uint8)
    packed[:, 2:] = numbers[:, : _N // 2] | numbers[:, _N // 2 :] << 4
    return packed.reshape(*values.shape[:-1], -1)


def _furthest(blocks: Values) -> Values:
    """The first value of each block that is furthest from 0; NaN is never it."""
    sizes = np.abs(blocks)
    sizes[np.isnan(sizes)] = 0
    found: Values = np.take_along_axis(blocks, sizes.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.where(np.isnan(found), np.float32(0), found)


def _nearest(x: Values) -> npt.NDArray[np.uint8]:
    """The numbers of the levels nearest to x; of two, the higher. NaN gets the last one."""
    number = np.zeros(x.shape, np.uint8)
    for low, high in pairwise(LEVELS):
        number += ~(x - low < high - x)
    return number


def _factors(blocks: Values, levels: Values) -> Values:
    weights = blocks * blocks
    xs, squares = weights * levels * blocks, weights * levels * levels
    sum_x, sum_square = np.zeros(len(blocks), np.float32), np.zeros(len(blocks), np.float32)
    for j in range(_N):
        sum_x += xs[:, j]
        sum_square += squares[:, j]
    return np.where(sum_square > 0, sum_x / sum_square, np.float32(0))
