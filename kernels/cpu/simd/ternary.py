"""Weights of 5 digits in base 3 to a byte, as `bytes.words`.

A byte q is the fraction q / 256 in base 3. Its first digit is 3 * q >> 8, and 3 * q & 255 is the
fraction of the digits that follow. Here q has its highest bit inverted, for comparisons of signed
bytes; 3 * q has, too. Tested by tests/kernels/test_cpu_simd_grids.py.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from . import types
from .bytes import WORDS, pack, unpack, words
from .vectors import pointer_to, vector_function

_V_I8 = ir.VectorType(ir.IntType(8), 64)


def _all(n: int) -> Any:
    return ir.Constant(_V_I8, [n] * 64)


def _times(b: Any, v: Any, factor: int) -> Any:
    while factor > 1:
        v = b.add(v, b.add(v, v))
        factor //= 3
    return v


def _load(b: Any, address: Any, n: int) -> list[Any]:
    at = pointer_to(b, address, _V_I8)
    found = [b.load(b.gep(at, [ir.IntType(64)(i)]), align=1) for i in range(n)]
    return [b.xor(v, _all(-128)) for v in found]


def _emit_last(b: Any, quads: Any, last: Any) -> Any:
    four, [one] = _load(b, quads, WORDS // 2), _load(b, last, 1)
    digits = [_times(b, one, 3**i) for i in range(4)]
    return pack(b, [_times(b, v, 81) for v in four] + digits)


def _emit_first_digit(b: Any, v: Any) -> Any:
    above = [b.sext(b.icmp_signed(">", v, _all(q - 128)), _V_I8) for q in (85, 170)]
    return b.sub(b.neg(above[0]), above[1])


def _emit_load_pairs(b: Any, address: Any) -> Any:
    four = _load(b, address, WORDS // 2)
    return pack(b, four + [_times(b, v, 3) for v in four])


def _emit_times_3(b: Any, value: Any) -> Any:
    return pack(b, [_times(b, v, 3) for v in unpack(b, value)])


# 8 vectors of fractions
load_fractions = vector_function(words, (types.int64,), lambda b, at: pack(b, _load(b, at, WORDS)))
# 4 vectors of fractions, then those without their first digit
load_fractions_twice = vector_function(words, (types.int64,), _emit_load_pairs)
# 4 vectors without their first 4 digits, then one without its first 0, 1, 2 and 3 digits
load_last_fractions = vector_function(words, (types.int64, types.int64), _emit_last)
# fractions without their first digit
times_3 = vector_function(words, (words,), _emit_times_3)
# the first digits of fractions
first_digits = vector_function(
    words, (words,), lambda b, value: pack(b, [_emit_first_digit(b, v) for v in unpack(b, value)])
)
