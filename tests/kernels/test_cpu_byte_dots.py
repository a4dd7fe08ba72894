"""Dot products of bytes are exact, with every instruction that this machine has."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from llvmlite import ir
from numba import cfunc, types

from lamella.kernels.cpu.compiler.isa import host_features
from lamella.kernels.cpu.simd import byte_dots
from lamella.kernels.cpu.simd.byte_dots import Chain
from lamella.kernels.cpu.simd.vectors import pointer_to, vector_function

Array = npt.NDArray[Any]

N_CHAINS, N_WORDS = 2, 8


class Way(NamedTuple):
    """An emitter, its visible features (None: all), required features, bytes of a vector, and the
    largest weights to test; `least` is the smallest weight."""

    emit: Any
    features: tuple[str, ...] | None
    needed: tuple[str, ...]
    size: int
    largest: tuple[int, ...] = (255,)
    least: int = 0


def one_by_one(dot4: Any) -> Any:
    return byte_dots._one_by_one(dot4)


SMALL: Final = (3, 7, 15, 16, 17, 24, 31, 32, 63, 64, 127)  # 43 to 1 products fit in 16 bits
SIGNED: Final = one_by_one(byte_dots._dot4_signed)
USDOT, SDOT, MOVED = map(
    one_by_one, (byte_dots._dot4_usdot, byte_dots._dot4_sdot, byte_dots._dot4_moved)
)
WIDE, NARROW = ("avx512bw", "avx2"), ("avx2",)
VNNI: Final = one_by_one(byte_dots._dot4_vnni)
PAIRS: Final = one_by_one(byte_dots._dot4_pairs)
WAYS: Final = {
    "vnni 512": Way(VNNI, ("avx512vnni",), ("avx512vnni",), 64),
    "vnni 256": Way(VNNI, ("avxvnni",), ("avxvnni",), 64),
    "usdot": Way(USDOT, (), ("i8mm",), 32),
    "sdot, any": Way(MOVED, ("dotprod",), ("dotprod",), 64),
    "sdot": Way(SDOT, (), ("dotprod",), 32, (127,), -128),
    "small 512": Way(byte_dots._emit_small, WIDE, WIDE, 64, SMALL),
    "small 256": Way(byte_dots._emit_small, NARROW, NARROW, 32, SMALL),
    "signed 512": Way(SIGNED, WIDE, WIDE, 64, (127,), -128),
    "signed 256": Way(SIGNED, NARROW, NARROW, 32, (127,), -128),
    "pairs 512": Way(PAIRS, WIDE, WIDE, 64),
    "pairs 256": Way(PAIRS, NARROW, NARROW, 32),
    "pairs": Way(PAIRS, (), (), 32),
    "any": Way(one_by_one(byte_dots.emit_dot4), None, (), 64),
    "chosen": Way(
        byte_dots.emit_dots, None, (), byte_dots.REGISTER, (15, 127, byte_dots.SIGNED_ABOVE)
    ),
}


def dots(way: Way, largest: int, acc: Array, weights: Array, columns: Array) -> Array:
    """Add the products of N_WORDS vectors each to N_CHAINS sums, in every row."""
    lanes, size = way.size // 4, way.size

    def emit(b: Any, at: Any, weights: Any, columns: Any, to: Any) -> None:
        def vector(address: Any, i: int, bits: int, n: int) -> Any:
            place = b.add(address, ir.IntType(64)(size * i))
            return pointer_to(b, place, ir.VectorType(ir.IntType(bits), n))

        def column(chain: int, i: int) -> Any:
            return b.load(vector(columns, N_WORDS * chain + i, 8, size), align=1)

        chains = [
            Chain(
                b.load(vector(at, c, 32, lanes), align=1),
                [
                    b.load(vector(weights, N_WORDS * c + i, 8, size), align=1)
                    for i in range(N_WORDS)
                ],
                partial(column, c),
            )
            for c in range(N_CHAINS)
        ]
        for c, sum in enumerate(way.emit(b, chains, largest)):
            b.store(sum, vector(to, c, 32, lanes), align=1)

    step = vector_function(types.void, (types.int64,) * 4, emit)
    result = np.empty_like(acc)
    row, words = N_CHAINS * size, N_CHAINS * N_WORDS * size

    def kernel(acc, weights, columns, to, n):  # type: ignore[no-untyped-def]
        for i in range(n):
            step(acc + row * i, weights + words * i, columns + words * i, to + row * i)

    compiled = cfunc(types.void(*[types.int64] * 5), error_model="numpy")(kernel)
    places = [a.ctypes.data for a in (acc, weights, columns, result)]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(compiled.address)(*places, len(acc))
    return result


@pytest.mark.parametrize("name", WAYS)
def test_dots_are_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    way, random = WAYS[name], np.random.default_rng(0)
    if not all(host_features().get(f) for f in way.needed):
        pytest.skip("this processor lacks the instructions")
    if way.features is not None:
        monkeypatch.setattr(byte_dots, "has_feature", way.features.__contains__)
    for largest in way.largest:
        # every pair of bytes, and neighbors whose sums are the largest or the smallest possible
        weight, column = np.arange(way.least, largest + 1), np.arange(-127, 128)
        pairs = np.stack(np.meshgrid(weight, column), -1).reshape(-1, 2)
        ends = np.array([(w, x) for w in (way.least, largest) for x in (-127, 127)])
        shape = (-1, N_CHAINS, N_WORDS, way.size)
        size = N_CHAINS * N_WORDS * way.size
        same = np.repeat(ends, size, axis=0)
        some = ends[random.integers(0, 4, 100 * size)]
        every = random.permutation(np.resize(pairs, (len(pairs) // size * size + size, 2)))
        many = np.concatenate([same, some, every])
        w, x = (np.ascontiguousarray(many[:, i].reshape(shape)) for i in (0, 1))
        acc = random.integers(-(2**30), 2**30, (len(w), N_CHAINS, way.size // 4)).astype(np.int32)
        exact = acc + (w * x).reshape(*acc.shape[:2], N_WORDS, -1, 4).sum(axis=(2, 4))
        found = dots(way, largest, acc, w.astype(np.uint8), x.astype(np.int8))
        assert (found == exact).all(), largest


def test_weights_whose_products_do_not_fit_have_another_way() -> None:
    assert byte_dots.SIGNED_ABOVE in (127, 255)
    with pytest.raises(AssertionError, match="products of 130 do not fit in 16 bits"):
        byte_dots._emit_small(None, [Chain(None, [None], lambda _: None)], 130)
