"""Dot products of pairs of BF16, on processors with AVX512-BF16: twice the rate of floats.

The instruction is not IEEE 754's: it takes subnormal numbers as zeros and rounds after each
addition, so BF16's bits differ from those of other processors. Knows no layouts of matrices.
Tested by tests/kernels/test_cpu_bf16_dots.py.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from ..compiler.isa import has_feature
from . import types
from .ints import call
from .vectors import LANES, f32x16, pointer_to, vector_function

HAS_DOTS: Final = has_feature("avx512bf16")


class _BFloat(ir.Type):
    """LLVM's `bfloat`, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_I32, _I64 = ir.IntType(32), ir.IntType(64)
_V_I16 = ir.VectorType(ir.IntType(16), 2 * LANES)
_V_I32, _V_F32 = ir.VectorType(_I32, LANES), ir.VectorType(ir.FloatType(), LANES)
_PAIRS: Final = ir.VectorType(_BFloat(), 2 * LANES)
_ORDER: Final = [i // 2 + LANES * (i % 2) for i in range(2 * LANES)]


def emit_dot2(b: Any, sum: Any, x: Any, y: Any) -> Any:
    """A sum plus both products of the pairs in each lane, the second one first."""
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    return call(b, name, _V_F32, sum, b.bitcast(x, _PAIRS), b.bitcast(y, _PAIRS))


def _emit_load(b: Any, address: Any) -> Any:
    v = b.load(pointer_to(b, address, _V_I16), align=1)
    order = ir.Constant(ir.VectorType(_I32, 2 * LANES), _ORDER)
    return b.bitcast(b.shuffle_vector(v, v, order), _V_F32)


# 16 BF16 values, and the 16 after them, as 16 pairs
load_bf16_pairs = vector_function(f32x16, (types.int64,), _emit_load)
