"""Blocks of quantized weights as integers and scales, unpacked by their layouts in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import quants
from packed_run import SCALES_OF_8_BITS, bytes_of

from lamella.graph import GGMLType, Tensor
from lamella.kernels.quants import LAYOUTS
from lamella.kernels.quants.values import IQ4_NL, grid

F32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

BLOCK, CHUNK = 32, 256
ONES: Final[IntArray] = np.ones((1, 1, 1), np.int64)


class Blocks(NamedTuple):
    """Weights by blocks of 32: `scale` * (`sub` * integer) + `min` * `low`. Integers are [n,
    blocks, 32]; `sub` and `low` are [n, blocks, 2], one for 16 integers each. In NVFP4, `scale` and
    `min` are the scales of the first and the last 16 integers."""

    integers: IntArray
    scale: F32Array
    min: F32Array | None = None
    sub: IntArray = ONES
    low: IntArray = ONES


def unpacked(t: Tensor) -> Blocks:
    """The blocks of a matrix of weights."""
    raw = bytes_of(t).reshape(-1, t.type.type_size).view(LAYOUTS[t.type])[:, 0]
    n, blocks, inner = t.ne[1], t.ne[0] // BLOCK, (len(raw), t.type.block_size // BLOCK)
    of = _unpacked(t.type, raw)

    def by_halves(x: IntArray) -> IntArray:
        return np.broadcast_to(x, (*inner, 2)).reshape(n, blocks, 2)

    return Blocks(
        of.integers.reshape(n, blocks, BLOCK),
        of.scale.reshape(n, blocks),
        None if of.min is None else of.min.reshape(n, blocks),
        by_halves(of.sub),
        by_halves(of.low),
    )


def _unpacked(type: GGMLType, raw: Array) -> Blocks:
    names = LAYOUTS[type].names or ()
    if type in SCALES_OF_8_BITS:
        return _of_e2m1(type, raw)
    if type in OTHERS:
        return OTHERS[type](raw)
    return _of_6_bits(raw, names) if type.block_size > BLOCK else _of_32(raw, names)


def _f32(x: Array) -> F32Array:
    return x.astype(np.float32)


def _in_blocks(q: IntArray) -> IntArray:
    return q.reshape(len(q), -1, BLOCK)


def _halves(bytes: Array, run: int) -> IntArray:
    """The nibbles of each `run` bytes: all low ones, then all high ones."""
    runs = bytes.reshape(*bytes.shape[:-1], -1, run).astype(np.int64)
    return np.concatenate([runs & 15, runs >> 4], axis=-1).reshape(*bytes.shape[:-1], -1)


def _parts(bytes: Array, bits: int) -> IntArray:
    """Numbers of so many bits; the low bits of a byte come first."""
    parts = bytes.astype(np.int64)[..., None] >> np.arange(0, 8 * bytes.itemsize, bits)
    return (parts & ((1 << bits) - 1)).reshape(len(bytes), -1)


# --- blocks of 32 or 64 values ---


def _of_32(raw: Array, names: tuple[str, ...]) -> Blocks:
    q = raw["qs"].astype(np.int64) if raw["qs"].shape[1] == BLOCK else _halves(raw["qs"], 16)
    bits = 4
    if "qh" in names:
        q += _parts(raw["qh"], 1) << 4
        bits = 5
    if "m" not in names and raw["qs"].shape[1] < BLOCK:
        q -= 1 << (bits - 1)
    return Blocks(q, _f32(raw["d"]), _f32(raw["m"]) if "m" in names else None)


def _of_e2m1(type: GGMLType, raw: Array) -> Blocks:
    name, values = SCALES_OF_8_BITS[type]
    scale = _f32(values)[raw[name]].reshape(len(raw), -1)
    run = 8 if type is GGMLType.NVFP4 else 16
    q = np.array(quants.MXFP4.kvalues, np.int64)[_halves(raw["qs"], run)]
    if type is GGMLType.MXFP4:
        return Blocks(q, scale)
    return Blocks(q, scale[:, ::2], scale[:, 1::2])


# --- blocks of 256 values ---


def _levels(raw: Array) -> IntArray:
    return np.array(IQ4_NL, np.int64)[_halves(raw["qs"], 16)]


def _iq4_xs(raw: Array) -> Blocks:
    scales = (_parts(raw["scales_l"], 4) | _parts(raw["scales_h"], 2) << 4) - 32
    return Blocks(_levels(raw), _f32(raw["d"])[:, None] * _f32(scales))


def _q6_k(raw: Array) -> Blocks:
    q = _halves(raw["ql"], 64) + (_of_2_bits(raw["qh"]) << 4) - 32
    scales = raw["scales"].astype(np.int64).reshape(-1, 8, 2)
    return Blocks(q, np.repeat(_f32(raw["d"]), 8), sub=scales)


def _of_6_bits(raw: Array, names: tuple[str, ...]) -> Blocks:
    q = _halves(raw["qs"], 32)
    if "qh" in names:
        q += _of_bits(raw["qh"]) << 4
    a, b, c = np.split(raw["scales"].astype(np.int64), 3, axis=1)
    scale = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=1)
    low = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=1)
    d, dmin = _f32(raw["d"])[:, None], _f32(raw["dmin"])[:, None]
    return Blocks(q, d * _f32(scale), -(dmin * _f32(low)))


def _of_bits(bytes: Array) -> IntArray:
    """Bit b of byte i is of value 32 * b + i."""
    bits = bytes.astype(np.int64)[:, None] >> np.arange(8)[:, None] & 1
    return bits.reshape(len(bytes), CHUNK)


def _of_2_bits(bytes: Array) -> IntArray:
    """Each 32 bytes hold 128 values: bits 0..1 of byte i value i, bits 2..3 value 32 + i, ..."""
    bits = bytes.astype(np.int64).reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2)[:, None] & 3
    return bits.reshape(len(bytes), CHUNK)


def _in_16(x: IntArray) -> IntArray:
    return x.reshape(len(x), -1, 2)


def _d(raw: Array) -> F32Array:
    """The block's scale for each of its 8 blocks."""
    return np.repeat(_f32(raw["d"])[:, None], CHUNK // BLOCK, axis=1)


def _q2_k(raw: Array) -> Blocks:
    both = raw["scales"].astype(np.int64)
    q = _of_2_bits(raw["qs"]).reshape(-1, 16, 16) * (both & 15)[..., None]
    dmin = np.repeat(-_f32(raw["dmin"])[:, None], CHUNK // BLOCK, axis=1)
    return Blocks(q, _d(raw), dmin, low=_in_16(both >> 4))


def _q3_k(raw: Array) -> Blocks:
    q = _of_2_bits(raw["qs"]) + (_of_bits(raw["hmask"]) << 2) - 4
    low = _halves(raw["scales"][:, :8], 8)
    high = raw["scales"][:, 8:].astype(np.int64)[:, None] >> np.arange(0, 8, 2)[:, None] & 3
    return Blocks(q, _d(raw), sub=_in_16((low | high.reshape(-1, 16) << 4) - 32))


def _tq2_0(raw: Array) -> Blocks:
    return Blocks(_of_2_bits(raw["qs"]) - 1, _d(raw))


def _tq1_0(raw: Array) -> Blocks:
    def digits(bytes: Array, n: int) -> IntArray:
        powers = (bytes.astype(np.int64)[:, None] * 3 ** np.arange(n)[:, None]) % 256
        return (powers * 3 >> 8).reshape(len(bytes), -1) - 1

    parts = digits(raw["qs"][:, :32], 5), digits(raw["qs"][:, 32:], 5), digits(raw["qh"], 4)
    return Blocks(np.concatenate(parts, axis=1), _d(raw))


# --- grids ---


def _even_signs(seven: IntArray) -> IntArray:
    """Signs of 8 values, 1 or -1, from 7 bits: the number of negative ones is even."""
    bits = seven[..., None] >> np.arange(7) & 1
    bits = np.concatenate([bits, bits.sum(-1, keepdims=True) & 1], axis=-1)
    return 1 - 2 * bits.reshape(len(seven), CHUNK)


def _signs(bytes: Array) -> IntArray:
    return 1 - 2 * _parts(bytes, 1)


def _values(name: str, indices: IntArray) -> IntArray:
    return grid(name).astype(np.int64)[indices].reshape(len(indices), CHUNK)


def _iq2_xxs(raw: Array) -> Blocks:
    words = raw["qs"]["signs"].astype(np.int64)
    signs = _even_signs((words[..., None] >> np.arange(0, 28, 7) & 127).reshape(len(raw), -1))
    q = _values("IQ2_XXS", raw["qs"]["grid"].astype(np.int64).reshape(len(raw), -1)) * signs
    return Blocks(q, _d(raw) * np.float32(0.125) * _f32(1 + 2 * (words >> 28)))


def _iq2_xs(raw: Array) -> Blocks:
    both = raw["qs"].astype(np.int64)
    q = _values("IQ2_XS", both & 511) * _even_signs(both >> 9)
    return Blocks(q, _d(raw) * np.float32(0.125), sub=_in_16(1 + 2 * _parts(raw["scales"], 4)))


def _iq2_s(raw: Array) -> Blocks:
    q = _values("IQ2_S", raw["qs"] | _parts(raw["qh"], 2) << 8) * _signs(raw["signs"])
    return Blocks(q, _d(raw) * np.float32(0.125), sub=_in_16(1 + 2 * _parts(raw["scales"], 4)))


def _iq3_xxs(raw: Array) -> Blocks:
    words = raw["signs"].astype(np.int64)
    signs = _even_signs((words[..., None] >> np.arange(0, 28, 7) & 127).reshape(len(raw), -1))
    q = _values("IQ3_XXS", raw["qs"].astype(np.int64)) * signs
    return Blocks(q, _d(raw) * np.float32(0.25) * _f32(1 + 2 * (words >> 28)))


def _iq3_s(raw: Array) -> Blocks:
    q = _values("IQ3_S", raw["qs"] | _parts(raw["qh"], 1) << 8) * _signs(raw["signs"])
    return Blocks(q, _d(raw) * _f32(1 + 2 * _parts(raw["scales"], 4)))


def _iq1_s(raw: Array) -> Blocks:
    high = raw["qh"].astype(np.int64)
    index = raw["qs"] | (high[..., None] >> np.arange(0, 12, 3) & 7).reshape(len(raw), -1) << 8
    scale = _d(raw) * _f32(1 + 2 * (high >> 12 & 7))
    return Blocks(_values("IQ1_S", index), scale, scale * _f32(np.where(high >> 15, -1 / 8, 1 / 8)))


def _iq1_m(raw: Array) -> Blocks:
    high, scales = _parts(raw["qh"], 4), raw["scales"].astype(np.int64)
    shift = np.repeat(np.where(high >> 3, -1, 1), 8, axis=1)
    q = 8 * _values("IQ1_S", raw["qs"] | (high & 7) << 8) + shift
    bits = (scales >> 12 << np.arange(0, 16, 4)).sum(-1).astype(np.uint16)
    d = np.repeat(_f32(bits.view(np.float16))[:, None], CHUNK // BLOCK, axis=1)
    sub = 1 + 2 * (scales[..., None] >> np.arange(0, 12, 3) & 7)
    return Blocks(q, d * np.float32(0.125), sub=_in_16(sub.reshape(len(raw), -1)))


OTHERS: Final[Mapping[GGMLType, Callable[[Array], Blocks]]] = {
    GGMLType.IQ4_NL: lambda raw: Blocks(_levels(raw), _f32(raw["d"])),
    GGMLType.IQ4_XS: _iq4_xs,
    GGMLType.Q6_K: _q6_k,
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.TQ1_0: _tq1_0,
    GGMLType.TQ2_0: _tq2_0,
    GGMLType.IQ2_XXS: _iq2_xxs,
    GGMLType.IQ2_XS: _iq2_xs,
    GGMLType.IQ2_S: _iq2_s,
    GGMLType.IQ3_XXS: _iq3_xxs,
    GGMLType.IQ3_S: _iq3_s,
    GGMLType.IQ1_S: _iq1_s,
    GGMLType.IQ1_M: _iq1_m,
}
