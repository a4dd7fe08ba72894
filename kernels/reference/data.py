"""Kernels of graph/ops/data.py: rows by index, copies between types and layouts, joins.

Copies within a type keep every bit. Tested by tests/kernels/test_reference_data.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...graph import Tensor
from ...graph.op import ConcatParams, Op
from ...graph.tensor import MAX_DIMS, params_of
from .arrays import Array, NumpyKernel, check_index, from_f32, read, store, tile, to_f32


def _get_rows(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    a, ids = srcs[0], srcs[1][0]  # (j, i, n_rows, n) and (j, i, m)
    check_index(node, "row", ids, a.shape[2])
    j, i = np.ogrid[: a.shape[0], : a.shape[1]]
    rows = a[j[..., None], i[..., None], ids]
    dst[...] = rows if node.type is node.src[0].type else to_f32(node.src[0].type, rows)


def _set_rows(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    ids = srcs[1][0]  # (y, x, m): x and y divide the batches of b
    check_index(node, "row", ids, dst.shape[2])
    rows = from_f32(node.type, read(node, srcs, 0))
    # NumPy writes in order: if an id occurs twice, the last row remains
    for j, i in np.ndindex(rows.shape[:2]):
        dst[j, i, ids[j % ids.shape[0], i % ids.shape[1]]] = rows[j, i]


def _copy(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    # in the order of elements, because shapes may differ; blocks never cross rows, so this also
    # holds for bytes
    if node.type is node.src[0].type:
        dst[...] = srcs[0].reshape(dst.shape)  # NumPy handles overlapping memory
    else:
        store(node.type, dst, read(node, srcs, 0).reshape(node.ne[::-1]))


def _concat(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    axis = MAX_DIMS - 1 - params_of(node, ConcatParams).dim
    dst[...] = np.concatenate(srcs, axis=axis)


def _repeat(_: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    dst[...] = tile(srcs[0], dst.shape)


KERNELS: Final[dict[Op, NumpyKernel]] = {
    Op.GET_ROWS: _get_rows,
    Op.SET_ROWS: _set_rows,
    Op.CONCAT: _concat,
    Op.REPEAT: _repeat,
    Op.CPY: _copy,
    Op.CONT: _copy,
    Op.DUP: _copy,
}
