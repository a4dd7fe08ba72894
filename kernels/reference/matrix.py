"""Kernels of matrix products (graph/ops/matrix.py): weights are decoded, all arithmetic is float32.

Each element is one `dot`: its bits depend only on its two rows.
Tested by tests/kernels/test_reference_matrix.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...graph import GGMLType, Tensor
from ...graph.op import Op
from .arrays import Array, F32Array, NumpyKernel, check_index, dot, read, store, to_f32

N_ROWS_DECODED: Final = 256  # rows that are decoded at a time, to limit memory


def _mul_mat(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    a, x = srcs[0], read(node, srcs, 1)  # (y, x, n, k) and (j, i, m, k)
    result = np.empty(dst.shape, np.float32)
    j_repeats, i_repeats = x.shape[0] // a.shape[0], x.shape[1] // a.shape[1]
    for j, i in np.ndindex(x.shape[:2]):
        weights = a[j // j_repeats, i // i_repeats]
        result[j, i] = _products(node.src[0].type, weights, x[j, i])
    store(node.type, dst, result)


def _mul_mat_id(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    experts, x, ids = srcs[0][0], read(node, srcs, 1)[0], srcs[2][0, 0]
    check_index(node, "expert", ids, len(experts))
    result = np.empty(dst.shape, np.float32)
    for expert in np.unique(ids):
        token, used = np.nonzero(ids == expert)
        rows = x[token, used % x.shape[1]]
        result[0, token, used] = _products(node.src[0].type, experts[expert], rows)
    store(node.type, dst, result)


def _products(type: GGMLType, a: Array, x: F32Array) -> F32Array:
    """Products (m, n) of each row of x (m, k) with each row of a (n, k or bytes), of `type`."""
    result = np.empty((len(x), len(a)), np.float32)
    for n in range(0, len(a), N_ROWS_DECODED):
        some = slice(n, n + N_ROWS_DECODED)
        weights = to_f32(type, a[some])
        for m, row in enumerate(x):
            result[m, some] = dot(weights, row)
    return result


def _lora_a(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    a, x, scales, parts = srcs[0][0, 0], srcs[1][0, 0], srcs[2][0, 0], srcs[3][0, 0, 0]
    check_index(node, "part", parts, scales.shape[1])
    result = np.zeros(dst.shape, np.float32)
    for t, row in enumerate(x):
        scale = scales[t, parts]
        used = scale != 0
        result[0, 0, t, used] = scale[used] * dot(a[used], row)
    store(node.type, dst, result)


def _lora_b(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    result, b, z = read(node, srcs, 0), srcs[1][0, 0], srcs[2][0, 0]
    for t, row in enumerate(z):
        for j in np.flatnonzero(row):
            result[0, 0, t] += row[j] * b[j]
    store(node.type, dst, result)


KERNELS: Final[dict[Op, NumpyKernel]] = {
    Op.MUL_MAT: _mul_mat,
    Op.MUL_MAT_ID: _mul_mat_id,
    Op.LORA_A: _lora_a,
    Op.LORA_B: _lora_b,
}
