"""Unpacked weights: a group of 16 rows as bytes and scales, made once for all tiles of columns.

With many columns, unpacking the weights of each tile again would take up to half of the time. The
weights of a chunk are then unpacked into scratch memory that stays in the second cache. A record
has 32 values of 16 rows, and is the same for all types of a `Kind`:

    512           bytes u, 4 values of each row in a vector (`bytes.words`)
    64 * n        float32 scales of the rows, `Kind.n_scales` vectors

Bits do not depend on it: the same integers and floats are added in the same order.
Tested by tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from ....graph.types import GGMLType
from ..compiler.jit import Kernel, family
from ..simd import types
from ..simd.bytes import BYTES, WORDS, load_words, pack, unpack, words
from ..simd.calls import inlined
from ..simd.vectors import f32x16, pointer_to, vector_function
from . import unpacking_iq as _unpacking_iq  # noqa: F401 - declare their steps
from .formats import FORMATS, Format
from .tiles import VALUES, Kind
from .unpacking import STEPS

_SCALES_AT: Final = BYTES * WORDS  # offset of the scales in a record
_I64: Final = ir.IntType(64)


def record_bytes(kind: Kind) -> int:
    """The bytes of an unpacked record."""
    return _SCALES_AT + 4 * 16 * kind.n_scales


def group_bytes(form: Format, k: int) -> int:
    """The bytes of an unpacked group of rows of `k` values; 0 for floats, which stay packed."""
    return 0 if form.kind is None else k // VALUES * record_bytes(form.kind)


@family
def unpack_kernel(type: GGMLType) -> Kernel:
    """The kernel (weights, n_blocks, to): unpacks `n_blocks` blocks of groups of packed rows."""
    form = FORMATS[type]
    assert form.kind is not None, f"{type.name} is not quantized"
    step, record = STEPS[type](_store_record(form.kind), 0), form.record_bytes

    def run(weights, n_blocks, to):
        p = weights
        for _ in range(n_blocks):
            to = step(to, p, 0)
            p += record

    run.__name__ = f"unpack_{type.name.lower()}"
    return Kernel(run, 3)


def _store_record(kind: Kind) -> Any:
    """What a step multiplies with: it stores a record where the sums are, and returns its end."""
    size = record_bytes(kind)

    def emit(b: Any, to: Any, words: Any, scales: Any, columns: Any) -> Any:
        for i, vector in enumerate([*unpack(b, words), *unpack(b, scales)]):
            place = pointer_to(b, b.add(to, _I64(BYTES * i)), vector.type)
            b.store(vector, place, align=1)
        return b.add(to, _I64(size))

    args = types.int64, words, types.UniTuple(f32x16, kind.n_scales), types.int64
    return vector_function(types.int64, args, emit)


def unpacked_step(kind: Kind, multiply: Any) -> Any:
    """The step function of unpacked records, as those in `STEPS`."""
    scales_of = _load_scales(kind.n_scales)

    @inlined
    def run(sums, p, columns):
        return multiply(sums, load_words(p), scales_of(p + _SCALES_AT), columns)

    return run


def _load_scales(n: int) -> Any:
    kind = ir.VectorType(ir.FloatType(), 16)

    def emit(b: Any, address: Any) -> Any:
        places = [pointer_to(b, b.add(address, _I64(BYTES * i)), kind) for i in range(n)]
        return pack(b, [b.load(place, align=1) for place in places])

    return vector_function(types.UniTuple(f32x16, n), (types.int64,), emit)
