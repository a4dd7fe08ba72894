"""Vector functions of integer products: vectors of 64 bytes, and tiles.

`i8x64` is LLVM's `<64 x i8>`. A tile is a tuple of vectors of floats, one for each column. Knows no
block formats, and no products of bytes: those are in byte_dots.py.
Tested by tests/kernels/test_cpu_simd_bytes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir

from ..compiler.isa import has_feature
from . import types
from .ints import call, i32x16
from .vectors import f32x16, pointer_to, vector_function

BYTES: Final = 64  # bytes of a vector
CACHE_LINE: Final = 64
WORDS: Final = 8  # vectors of 4 values for each of 16 rows: 32 values of a row

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_V_I8, _V_I16, _V_I32 = (ir.VectorType(t, n) for t, n in ((_I8, 64), (_I16, 32), (_I32, 16)))
_V_F32 = ir.VectorType(ir.FloatType(), 16)

_address = types.int64
i8x64: Final = types.i8x64
words: Final = types.UniTuple(i8x64, WORDS)


def _all(type: Any, n: int) -> Any:
    return ir.Constant(type, [n] * type.count)


def _load(b: Any, address: Any, type: Any) -> Any:
    return b.load(pointer_to(b, address, type), align=1)


def parts_of(b: Any, v: Any, n: int) -> list[Any]:
    """The parts of `n` lanes of a vector."""
    undefined = ir.Constant(v.type, ir.Undefined)
    index = ir.VectorType(_I32, n)
    return [
        b.shuffle_vector(v, undefined, ir.Constant(index, list(range(i, i + n))))
        for i in range(0, v.type.count, n)
    ]


def joined(b: Any, parts: list[Any]) -> Any:
    """The concatenation of parts of equal size."""
    while len(parts) > 1:
        n = 2 * parts[0].type.count
        index = ir.Constant(ir.VectorType(_I32, n), list(range(n)))
        parts = [
            b.shuffle_vector(x, y, index) for x, y in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]


def spread(b: Any, scalar: Any, type: Any) -> Any:
    """A scalar in all lanes of a vector type."""
    undefined = ir.Constant(type, ir.Undefined)
    one = b.insert_element(undefined, scalar, _I32(0))
    return b.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_I32, type.count), None))


def spread_word(b: Any, address: Any, offset: int, n: int = 16) -> Any:
    """The 4 bytes at `address + offset`, in all `n` lanes."""
    at = b.gep(pointer_to(b, address, _I8), [_I64(offset)])
    word = b.load(b.bitcast(at, _I32.as_pointer()), align=1)
    return spread(b, word, ir.VectorType(_I32, n))


def spread_float(b: Any, address: Any, offset: int, n: int = 16) -> Any:
    """The float at `address + offset`, in all `n` lanes."""
    return b.bitcast(spread_word(b, address, offset, n), ir.VectorType(ir.FloatType(), n))


def emit_prefetch(b: Any, address: Any) -> None:
    """Prefetch the cache line at an address into the first cache; any address is valid."""
    line = pointer_to(b, address, _I8)
    call(b, "llvm.prefetch.p0", ir.VoidType(), line, _I32(0), _I32(3), _I32(1))


def prefetch(n_bytes: int) -> Any:
    """A procedure that prefetches `n_bytes` from an address on into the first cache."""

    def emit(b: Any, address: Any) -> None:
        for offset in range(0, n_bytes, CACHE_LINE):
            emit_prefetch(b, b.add(address, _I64(offset)))

    return vector_function(types.void, (_address,), emit)


def _emit_scaled_to_nearest(b: Any, v: Any, factor: Any) -> Any:
    # after adding 1.5 * 2**23, the low bits of a float are an integer
    large = ir.Constant(_V_F32, [1.5 * 2**23] * 16)
    bits = b.bitcast(fma(b, v, factor, large), _V_I32)
    return b.sub(bits, _all(_V_I32, 0x4B400000))


# v * factor as integers, to nearest, ties to even; undefined for NaN and above 2**22
scaled_to_nearest = vector_function(i32x16, (f32x16, f32x16), _emit_scaled_to_nearest)
# the sum of a vector's lanes
sum_lanes = vector_function(
    types.int64,
    (i32x16,),
    lambda b, v: b.sext(call(b, "llvm.vector.reduce.add.v16i32", _I32, v), _I64),
)


# --- moving bytes between rows and lanes ---


def interleave_rows(size: int) -> Any:
    """A procedure (source, stride, destination) that interleaves 16 bytes of each of 16 rows: the
    first `size` bytes of all rows, then the next `size` bytes. It reads and writes 256 bytes."""

    def emit(b: Any, source: Any, stride: Any, destination: Any) -> None:
        kind = ir.VectorType(ir.IntType(8 * size), 16 // size)
        places = [b.add(source, b.mul(stride, _I64(r))) for r in range(16)]
        vectors = [_load(b, place, kind) for place in places]
        while len(vectors) > 1:  # interleave row r of the first half and row r of the second half
            half = len(vectors) // 2
            n = vectors[0].type.count
            order = [i // 2 + i % 2 * n for i in range(2 * n)]
            index = ir.Constant(ir.VectorType(_I32, 2 * n), order)
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [b.shuffle_vector(x, y, index) for x, y in pairs]
        b.store(vectors[0], pointer_to(b, destination, vectors[0].type), align=1)

    return vector_function(types.void, (_address,) * 3, emit)


def _emit_bits_to_bytes(b: Any, address: Any) -> None:
    x, y = _load(b, address, _V_I32), ir.Constant(_V_I32, None)
    for j in range(8):
        four = b.and_(b.lshr(x, _all(_V_I32, 4 * j)), _all(_V_I32, 15))
        # its bits become the lowest bits of 4 bytes
        spread = b.and_(b.mul(four, _all(_V_I32, 0x00204081)), _all(_V_I32, 0x01010101))
        y = b.or_(y, b.shl(spread, _all(_V_I32, j)))
    b.store(y, pointer_to(b, address, _V_I32), align=1)


# in each of 16 words at an address, move bit 4 * j + i to bit j of byte i
bits_to_bytes = vector_function(types.void, (_address,), _emit_bits_to_bytes)


# --- words: 8 vectors of bytes, 4 values of 16 rows in each ---


def _emit_load_words(b: Any, address: Any) -> Any:
    at = pointer_to(b, address, _V_I8)
    return pack(b, [b.load(b.gep(at, [_I64(i)]), align=1) for i in range(WORDS)])


def load_apart(gap: int) -> Any:
    """A function that loads 4 vectors at an address and 4 at `gap` bytes after it."""

    def emit(b: Any, address: Any) -> Any:
        at = pointer_to(b, address, _I8)
        places = [b.gep(at, [_I64(BYTES * (i % 4) + gap * (i // 4))]) for i in range(WORDS)]
        return pack(b, [b.load(b.bitcast(p, _V_I8.as_pointer()), align=1) for p in places])

    return vector_function(words, (_address,), emit)


def nibbles(entries: Sequence[int] | None = None, run: int = 4) -> Any:
    """A function that loads 4 vectors and returns 8: the nibbles of their bytes.

    Of each `run` vectors it returns the low 4 bits of all bytes, then the high 4 bits. So a block's
    values in halves of 4 * run come in order. A nibble is replaced by its entry, if there are some.
    """

    def emit(b: Any, address: Any) -> Any:
        at = pointer_to(b, address, _V_I8)
        vectors = [b.load(b.gep(at, [_I64(i)]), align=1) for i in range(WORDS // 2)]
        found: list[Any] = []
        for first in range(0, len(vectors), run):
            part = vectors[first : first + run]
            found += [emit_nibble(b, v, 0, entries) for v in part]
            found += [emit_nibble(b, v, 4, entries) for v in part]
        return pack(b, found)

    return vector_function(words, (_address,), emit)


def emit_nibble(b: Any, v: Any, shift: int, entries: Sequence[int] | None) -> Any:
    if entries is not None and has_feature("avx512vbmi"):
        # the index has 6 bits: four equal tables of 16 ignore 2 of them, so it needs no mask
        table = ir.Constant(_V_I8, list(entries) * 4)
        pairs = b.lshr(b.bitcast(v, _V_I16), _all(_V_I16, shift))
        index = b.bitcast(pairs, _V_I8)
        return call(b, "llvm.x86.avx512.permvar.qi.512", _V_I8, table, index)
    plain = b.lshr(v, _all(_V_I8, 4)) if shift else b.and_(v, _all(_V_I8, 15))
    return plain if entries is None else _looked_up(b, entries, plain)


def _emit_bits_of(b: Any, words: Any, shift: Any, mask: Any) -> Any:
    # there are no shifts of bytes: shift pairs, then mask out the bits of the other byte
    count = spread(b, b.trunc(shift, _I16), _V_I16)
    kept = spread(b, b.trunc(mask, _I8), _V_I8)

    def moved(v: Any) -> Any:
        return b.bitcast(b.lshr(b.bitcast(v, _V_I16), count), _V_I8)

    return pack(b, [b.and_(moved(v), kept) for v in unpack(b, words)])


def _emit_with_bits(b: Any, words: Any, high: Any, place: Any) -> Any:
    count = spread(b, b.trunc(place, _I16), _V_I16)

    def moved(v: Any) -> Any:
        return b.bitcast(b.shl(b.bitcast(v, _V_I16), count), _V_I8)

    pairs = zip(unpack(b, words), unpack(b, high), strict=True)
    return pack(b, [b.or_(v, moved(w)) for v, w in pairs])


def _emit_unsigned(b: Any, words: Any) -> Any:
    return pack(b, [b.xor(v, _all(_V_I8, -128)) for v in unpack(b, words)])


def _emit_bit_planes(b: Any, address: Any) -> Any:
    v = _load(b, address, _V_I8)
    planes = [b.lshr(v, _all(_V_I8, i)) for i in range(WORDS)]
    return pack(b, [b.and_(plane, _all(_V_I8, 1)) for plane in planes])


def _looked_up(b: Any, entries: Sequence[int], index: Any) -> Any:
    if has_feature("avx512bw") or has_feature("avx2"):
        n, name = (64, "avx512.pshuf.b.512") if has_feature("avx512bw") else (32, "avx2.pshuf.b")
        table = ir.Constant(ir.VectorType(_I8, n), list(entries) * (n // 16))
        parts = parts_of(b, index, n)
        return joined(b, [call(b, f"llvm.x86.{name}", table.type, table, part) for part in parts])
    result = ir.Constant(_V_I8, None)
    for i, entry in enumerate(entries):
        here = b.icmp_signed("==", index, _all(_V_I8, i))
        result = b.select(here, _all(_V_I8, entry), result)
    return result


load_words = vector_function(words, (_address,), _emit_load_words)
# each byte shifted right and masked; the mask must have at most 8 - shift bits
bits_of = vector_function(words, (words, types.int64, types.int64), _emit_bits_of)
# words with other words, shifted left to a place, merged in; their bits must fit there
with_bits = vector_function(words, (words, words, types.int64), _emit_with_bits)
# signed bytes plus 128, as unsigned bytes
unsigned = vector_function(words, (words,), _emit_unsigned)
# load a vector; bit j of its bytes becomes the j-th vector of the words
load_bit_planes = vector_function(words, (_address,), _emit_bit_planes)


# --- tiles ---


def pack(b: Any, vectors: list[Any]) -> Any:
    """Vectors as the value of a Numba tuple."""
    value = ir.Constant(ir.ArrayType(vectors[0].type, len(vectors)), ir.Undefined)
    for i, vector in enumerate(vectors):
        value = b.insert_value(value, vector, i)
    return value


def unpack(b: Any, value: Any) -> list[Any]:
    """The vectors of a Numba tuple."""
    return [b.extract_value(value, i) for i in range(value.type.count)]


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""
    return call(b, f"llvm.fma.v{x.type.count}f32", x.type, x, y, z)


def to_float(b: Any, v: Any) -> Any:
    return b.sitofp(v, ir.VectorType(ir.FloatType(), v.type.count))


def store_rows(b: Any, values: list[Any], addresses: list[Any], n: Any) -> None:
    """Store the first min(n, 16) lanes of each vector at its address."""
    places = [pointer_to(b, address, _V_F32) for address in addresses]
    with b.if_else(b.icmp_signed(">=", n, _I64(16))) as (whole, part):
        with whole:
            for value, place in zip(values, places, strict=True):
                b.store(value, place, align=1)
        with part:
            lanes = ir.Constant(_V_I32, list(range(16)))
            mask = b.icmp_signed("<", lanes, spread(b, b.trunc(n, _I32), _V_I32))
            for value, place in zip(values, places, strict=True):
                name = "llvm.masked.store.v16f32.p0"
                call(b, name, ir.VoidType(), value, place, _I32(1), mask)


def zero_tile(n: int) -> Any:
    """A function that returns `n` vectors of floats, all 0."""
    kind = ir.ArrayType(_V_F32, n)
    return vector_function(types.UniTuple(f32x16, n), (), lambda b: ir.Constant(kind, None))
