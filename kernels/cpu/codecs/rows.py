"""Rows of any type and layout read as float32, for kernels of all types.

`row_reader(tensor)` gives the parameters that `read_row` needs in a kernel. Also `move`, which
copies elements from stride to stride. Tested by tests/kernels/test_data.py.
"""

from __future__ import annotations

from typing import Final

from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...plan.calls import Param
from ..params import int_param
from ..simd.calls import inlined
from ..simd.ints import call_at, copy_bytes
from ..simd.memory import load_i32, load_u16, store_i32, store_u16
from . import decode_iq as _decode_iq  # noqa: F401 - declare their decoders
from . import decode_k as _decode_k  # noqa: F401
from .decode import DECODERS

LINE: Final = 64


def is_readable(t: Tensor) -> bool:
    """True if `read_row` can read the tensor's rows."""
    if t.type.is_quantized and not t.has_contiguous_rows:
        return False
    return t.type is GGMLType.F32 or t.type in DECODERS


def is_plain(t: Tensor) -> bool:
    """True if the rows are float32 without gaps, so that they need no conversion."""
    return t.type is GGMLType.F32 and t.has_contiguous_rows


def row_reader(t: Tensor) -> tuple[Param, int, int, int]:
    """The 4 parameters for `read_row`: the decoder (0: none), the address of its table, the size of
    an element if there are gaps between elements (else 0), and their stride."""
    gaps = 0 if t.has_contiguous_rows else t.type.type_size
    decode: Param
    decode, table = (0, 0) if t.type is GGMLType.F32 else DECODERS[t.type].params
    return decode, table, gaps, t.nb[0]


def row_bytes(n: int) -> int:
    """Bytes of a row of `n` floats in scratch memory: an odd number of cache lines.

    Rows at multiples of 4096 bytes would compete for the same cache lines.
    """
    return (-(-4 * n // LINE) | 1) * LINE


@inlined
def move(dst, dst_stride, src, src_stride, n, size):
    """Copy `n` elements or blocks of `size` bytes, with a stride on each side."""
    if dst_stride == size and src_stride == size:
        copy_bytes(dst, src, n * size)
    elif size == 4:
        for i in range(n):
            store_i32(dst + dst_stride * i, load_i32(src + src_stride * i))
    elif size == 2:
        for i in range(n):
            store_u16(dst + dst_stride * i, load_u16(src + src_stride * i))
    else:
        for i in range(n):
            copy_bytes(dst + dst_stride * i, src + src_stride * i, size)


@inlined
def read_row(p, k, src, n, dst, temp):
    """Read `n` elements at `src` as floats to `dst`. `k`: the first parameter of `row_reader`.

    `temp` has room for `n` floats.
    """
    decode, table = int_param(p, k), int_param(p, k + 1)
    gaps, stride = int_param(p, k + 2), int_param(p, k + 3)
    if gaps != 0:
        at = dst if decode == 0 else temp
        move(at, gaps, src, stride, n, gaps)
        src = at
    if decode != 0:
        call_at(decode, (src, dst, n, table))
    elif gaps == 0:
        copy_bytes(dst, src, 4 * n)
