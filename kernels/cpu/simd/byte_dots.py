"""Dot products of bytes: weights times columns, each 4 adjacent products added to a 32-bit lane.

They are exact with every instruction set, so all give the same bits. Weights are unsigned bytes up
to a limit that the caller knows, or signed bytes; columns are signed bytes without -128. A vector
has the bytes of one register: `REGISTER` of them. Knows no block formats.
Tested by tests/kernels/test_cpu_byte_dots.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from llvmlite import ir

from ..compiler.isa import has_feature
from .bytes import joined, parts_of
from .ints import call

# bytes of a vector; of a processor with narrower registers LLVM uses two
REGISTER: Final = 64 if has_feature("avx512f") else 32
LARGEST_COLUMN: Final = 127  # the largest absolute value of a column's byte

_I8, _I16, _I32 = (ir.IntType(n) for n in (8, 16, 32))


class Chain(NamedTuple):
    """A sum in 32-bit lanes, and what to add to it: the i-th weights times `column(i)`."""

    sum: Any
    weights: Sequence[Any]
    column: Callable[[int], Any]


Emit = Callable[[Any, Sequence[Chain], int], list[Any]]  # (builder, chains, largest weight) -> sums


def _all(v: Any, n: int) -> Any:
    """A constant like `v` with `n` in all lanes."""
    return ir.Constant(v.type, [n] * v.type.count)


def _one_by_one(dot4: Callable[..., Any]) -> Emit:
    """Adds products with a function (builder, sum, weights, column) -> sum. Chains take turns, as
    an addition waits for the one before it."""

    def emit(b: Any, chains: Sequence[Chain], largest: int) -> list[Any]:
        sums = [chain.sum for chain in chains]
        for i in range(len(chains[0].weights)):
            for k, chain in enumerate(chains):
                sums[k] = dot4(b, sums[k], chain.weights[i], chain.column(i))
        return sums

    return emit


# --- one instruction for 4 products ---


def _dot4_vnni(b: Any, acc: Any, u: Any, s: Any) -> Any:
    n = 64 if has_feature("avx512vnni") else 32
    name = f"llvm.x86.avx512.vpdpbusd.{8 * n}"
    return _by_register(b, name, ir.VectorType(_I32, n // 4), (acc, n // 4), (u, n), (s, n))


def _dot4_usdot(b: Any, acc: Any, u: Any, s: Any) -> Any:
    name = "llvm.aarch64.neon.usdot.v4i32.v16i8"
    return _by_register(b, name, ir.VectorType(_I32, 4), (acc, 4), (u, 16), (s, 16))


def _dot4_sdot(b: Any, acc: Any, w: Any, s: Any) -> Any:
    """Of signed bytes."""
    name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
    return _by_register(b, name, ir.VectorType(_I32, 4), (acc, 4), (w, 16), (s, 16))


def _dot4_moved(b: Any, acc: Any, u: Any, s: Any) -> Any:
    """Multiplies u - 128, and adds 128 times the sum of s."""
    for _ in range(2):
        acc = _dot4_sdot(b, acc, _all(u, 64), s)
    return _dot4_sdot(b, acc, b.xor(u, _all(u, -128)), s)


def _by_register(b: Any, name: str, result: Any, *vectors: tuple[Any, int]) -> Any:
    """LLVM's intrinsic `name` for each register of (vector, lanes of a register)."""
    parts = zip(*(parts_of(b, v, n) for v, n in vectors), strict=True)
    return joined(b, [call(b, name, result, *part) for part in parts])


# --- products in 16 bits ---


def multiply_bytes(b: Any, u: Any, s: Any) -> Any:
    """The sums of two adjacent products of bytes in 16 bits. They must fit. Needs AVX2."""
    n, name = (64, "avx512.pmaddubs.w.512") if has_feature("avx512bw") else (32, "avx2.pmadd.ub.sw")
    return _by_register(b, f"llvm.x86.{name}", ir.VectorType(_I16, n // 2), (u, n), (s, n))


def sums_of_pairs(b: Any, pairs: Any) -> Any:
    """The sums of two adjacent 16-bit numbers, in 32 bits."""
    return _multiply_pairs(b, pairs, _all(pairs, 1))


def _multiply_pairs(b: Any, x: Any, y: Any) -> Any:
    """The sums of two adjacent products of 16-bit numbers. LLVM makes one instruction of it."""
    if has_feature("avx2"):
        wide = has_feature("avx512bw")
        n, name = (32, "avx512.pmaddw.d.512") if wide else (16, "avx2.pmadd.wd")
        return _by_register(b, f"llvm.x86.{name}", ir.VectorType(_I32, n // 2), (x, n), (y, n))
    kind = ir.VectorType(_I32, x.type.count)
    product = b.mul(b.sext(x, kind), b.sext(y, kind))
    undefined, half = ir.Constant(kind, ir.Undefined), ir.VectorType(_I32, x.type.count // 2)
    even, odd = (
        b.shuffle_vector(product, undefined, ir.Constant(half, list(range(first, kind.count, 2))))
        for first in (0, 1)
    )
    return b.add(even, odd)


def _emit_small(b: Any, chains: Sequence[Chain], largest: int) -> list[Any]:
    """Adds as many products as fit in 16 bits before it adds those in 32 bits."""
    n_fit = 32767 // (2 * LARGEST_COLUMN * largest)
    assert n_fit > 0, f"products of {largest} do not fit in 16 bits"
    sums, n = [chain.sum for chain in chains], len(chains[0].weights)
    parts: list[Any] = [None] * len(chains)
    for i in range(n):
        is_last = i % n_fit == n_fit - 1 or i == n - 1
        for k, chain in enumerate(chains):
            product = multiply_bytes(b, chain.weights[i], chain.column(i))
            parts[k] = product if i % n_fit == 0 else b.add(parts[k], product)
            if is_last:
                sums[k] = b.add(sums[k], sums_of_pairs(b, parts[k]))
    return sums


def _dot4_signed(b: Any, acc: Any, w: Any, s: Any) -> Any:
    """|w| * (s with the sign of w). Exact: 2 * 128 * 127 fits in 16 bits."""
    size = call(b, f"llvm.abs.v{w.type.count}i8", w.type, w, ir.IntType(1)(0))
    return b.add(acc, sums_of_pairs(b, multiply_bytes(b, size, with_sign(b, s, w))))


def with_sign(b: Any, s: Any, w: Any) -> Any:
    """s times the sign of w; where w is 0, undefined."""
    if has_feature("avx2") and not has_feature("avx512bw"):
        return _by_register(b, "llvm.x86.avx2.psign.b", ir.VectorType(_I8, 32), (s, 32), (w, 32))
    return b.select(b.icmp_signed("<", w, _all(w, 0)), b.neg(s), s)


def _dot4_pairs(b: Any, acc: Any, u: Any, s: Any) -> Any:
    """Even and odd bytes as 16-bit numbers. The sum of two products is exact in 32 bits."""
    kind = ir.VectorType(_I16, u.type.count // 2)
    u, s = b.bitcast(u, kind), b.bitcast(s, kind)
    eight = _all(u, 8)
    even = _multiply_pairs(b, b.and_(u, _all(u, 255)), b.ashr(b.shl(s, eight), eight))
    odd = _multiply_pairs(b, b.lshr(u, eight), b.ashr(s, eight))
    return b.add(acc, b.add(even, odd))


# --- the choice ---


def _choice() -> tuple[Any, Emit, Emit | None]:
    """Functions for any unsigned weights, for small ones, and for signed ones, or None."""
    if has_feature("avx512vnni") or has_feature("avxvnni"):
        return _dot4_vnni, _one_by_one(_dot4_vnni), None
    if has_feature("i8mm"):
        return _dot4_usdot, _one_by_one(_dot4_usdot), None
    if has_feature("dotprod"):
        return _dot4_moved, _one_by_one(_dot4_sdot), _one_by_one(_dot4_sdot)
    if has_feature("avx512bw") or (has_feature("avx2") and not has_feature("avx512f")):
        return _dot4_pairs, _emit_small, _one_by_one(_dot4_signed)
    return _dot4_pairs, _one_by_one(_dot4_pairs), None


# emit_dot4(builder, sum, unsigned weights of any size, column) -> sum, for whole registers
emit_dot4, emit_dots, _emit_signed = _choice()
SIGNED_ABOVE: Final = 127 if _emit_signed else 255  # `emit_dots` takes unsigned weights up to this
HAS_PAIRS: Final = emit_dots is _emit_small  # products have 16 bits, and several can be added


def emit_signed_dots(b: Any, chains: Sequence[Chain]) -> list[Any]:
    """The sums of chains with signed weights: those above SIGNED_ABOVE, minus 128."""
    assert _emit_signed is not None, "all unsigned weights have products"
    return _emit_signed(b, chains, 128)
