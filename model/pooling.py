"""Pooling: how the rows of a text's tokens become one vector.

Rows are added in the order of their positions, so that a vector's bits depend on its text only.
Knows no graphs. Tested by tests/model/test_pooling.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

F32Array = npt.NDArray[np.float32]


class Pooling(IntEnum):
    """The kinds of pooling, with the numbers of the key `pooling_type` (llama.h)."""

    NONE = 0  # a vector for each token
    MEAN = 1
    CLS = 2  # the first token's row
    LAST = 3
    RANK = 4  # the scores of a classifier

    @property
    def row(self) -> int | None:
        """The only row that is needed: 0, or -1 for the last one; None: all are."""
        return {Pooling.CLS: 0, Pooling.LAST: -1}.get(self)

    def of(self, rows: F32Array) -> F32Array:
        """Return the vector [n] of a text's rows [n_rows, n]; all rows for NONE."""
        if self is Pooling.NONE:
            return rows
        if self is Pooling.MEAN:
            mean: F32Array = rows.sum(axis=0) / np.float32(len(rows))
            return mean
        row: F32Array = rows[0 if self is Pooling.CLS else -1]
        return row


POOLINGS: Final = {pooling.name.lower(): pooling for pooling in Pooling}
"""The kinds of pooling by name."""


def normalized(rows: F32Array, norm: int = 2) -> F32Array:
    """Return vectors [..., n] of length 1, as llama.cpp does (common.cpp, common_embd_normalize).

    Args:
        rows: vectors.
        norm: -1: none, 0: the largest element becomes 32760, 1: taxicab, 2: euclidean, p: the
            p-norm.
    """
    if norm < 0:
        return rows
    values = np.abs(rows, dtype=np.float64)
    if norm == 0:
        length = values.max(axis=-1, keepdims=True) / 32760.0
    elif norm == 2:
        length = np.sqrt((values * values).sum(axis=-1, keepdims=True))
    else:
        with np.errstate(over="ignore"):  # a vector of infinite length becomes 0
            length = (values**norm).sum(axis=-1, keepdims=True) ** (1.0 / norm)
    scale = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
    scaled: F32Array = (rows * scale).astype(np.float32)
    return scaled
