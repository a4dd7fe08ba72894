"""Tensors as NumPy arrays: reads any type as float32, and stores float32 as any type.

An array has the shape (ne[3], ne[2], ne[1], ne[0]). The array of a quantized tensor has bytes: its
last dimension is a row of packed blocks. The `gguf` package packs and unpacks blocks.
Tested by tests/kernels/test_reference_arrays.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...alloc.host import DTYPES
from ...base.errors import BackendError
from ...graph import GGMLType, Tensor
from ..quants.iq4_nl import encode_iq4_nl

Array = npt.NDArray[Any]
F32Array = npt.NDArray[np.float32]
NumpyKernel = Callable[[Tensor, Array, Sequence[Array]], None]


@cache
def can_dequantize(type: GGMLType) -> bool:
    """True if `gguf.quants` can decode the type (also floats). Tries it on a block of zeros."""
    return _works(_unpacked, type, np.zeros((1, type.type_size), np.uint8))


@cache
def can_quantize(type: GGMLType) -> bool:
    """True if rows of the type can be written: IQ4_NL, or what `gguf.quants` can encode (also
    floats). Tries it on a block of zeros."""
    block = np.zeros((1, type.block_size), np.float32)
    return type is GGMLType.IQ4_NL or _works(_packed, type, block)


def to_f32(type: GGMLType, array: Array) -> F32Array:
    """The values of `array`, whose rows are of `type`, as a new C-contiguous array."""
    if type in (GGMLType.F32, GGMLType.F16, GGMLType.I32):
        return array.astype(np.float32, order="C")
    rows = np.ascontiguousarray(array).view(np.uint8)
    if rows.size == 0:  # gguf cannot count rows of empty arrays
        n = rows.shape[-1] // type.type_size * type.block_size
        return np.empty((*rows.shape[:-1], n), np.float32)
    return _unpacked(type, rows)


def from_f32(type: GGMLType, values: F32Array) -> Array:
    """`values` as rows of `type`: floats rounded to nearest even, integers towards zero."""
    if type in (GGMLType.F32, GGMLType.F16, GGMLType.I32):
        return values.astype(DTYPES[type])
    dtype = DTYPES.get(type, np.uint8)
    if values.size == 0:
        n = values.shape[-1] if type in DTYPES else type.row_size(values.shape[-1])
        return np.empty((*values.shape[:-1], n), dtype)
    values = np.ascontiguousarray(values)
    if type is GGMLType.IQ4_NL:
        return encode_iq4_nl(values)
    return _packed(type, values).view(dtype)


def store(type: GGMLType, dst: Array, values: F32Array) -> None:
    """Write `values` into `dst`, an array of `type` in any layout."""
    dst[...] = from_f32(type, values)


def read(node: Tensor, srcs: Sequence[Array], i: int) -> F32Array:
    """Source `i` of the node as a new array of float32."""
    return to_f32(node.src[i].type, srcs[i])


def float_kernel(compute: Callable[..., F32Array]) -> NumpyKernel:
    """The kernel of compute(node, *sources as float32), which returns the whole node as float32.

    The result is complete before it is stored, so `dst` may overlap a source.
    """

    def kernel(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
        values = [read(node, srcs, i) for i in range(len(srcs))]
        store(node.type, dst, compute(node, *values))

    return kernel


def check_index(node: Tensor, what: str, ids: Array, n: int) -> None:
    """Reject indices outside 0..n-1; NumPy would count negative indices from the end.

    Raises:
        BackendError: names the op, the node, the first bad index and the limit.
    """
    bad = ids[(ids < 0) | (ids >= n)]
    if bad.size:
        raise BackendError(
            f"{node.op.name.lower()} {node}: {what} {bad[0]} must be at least 0 and below {n}"
        )


def tile(x: Array, shape: tuple[int, ...]) -> Array:
    """A copy of x, repeated along each dimension to `shape`, a multiple of x's shape."""
    if 0 in shape:
        return np.empty(shape, x.dtype)
    return np.tile(x, [n // m for n, m in zip(shape, x.shape, strict=True)])


def dot(a: F32Array, b: F32Array) -> F32Array:
    """Sums of products along the last axis, in an order that depends only on its length.

    NumPy adds a contiguous axis pairwise, hence order="C". BLAS promises no order.
    """
    sums: F32Array = np.multiply(a, b, order="C").sum(axis=-1, dtype=np.float32)
    return sums


def _works(convert: Callable[[GGMLType, Array], Array], type: GGMLType, rows: Array) -> bool:
    try:
        convert(type, rows)
    except NotImplementedError:
        return False
    return True


def _unpacked(type: GGMLType, rows: Array) -> F32Array:
    from gguf import GGMLQuantizationType, quants  # noqa: PLC0415 - slow to import

    values: F32Array = quants.dequantize(rows, GGMLQuantizationType(int(type)))
    return values


def _packed(type: GGMLType, values: F32Array) -> Array:
    from gguf import GGMLQuantizationType, quants  # noqa: PLC0415 - slow to import

    rows: Array = quants.quantize(values, GGMLQuantizationType(int(type)))
    return rows
