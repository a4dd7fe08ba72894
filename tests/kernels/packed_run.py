"""Packed tensors, and their products in NumPy, for the tests of packed weights.

A packed tensor is in a `RepackBuffer`. The reference kernels still see the unpacked weights:
`reference_run.data` returns `PackedMemory.plain`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import reference_run
from gguf import quants
from reference_run import Array, F64Array, data, leaf, place, values_of

from lamella.alloc import alloc_tensors
from lamella.alloc.buffer import BufferType
from lamella.graph import GGMLType, Tensor
from lamella.kernels.cpu.packed.buffer import RepackBuffer, RepackBufferType
from lamella.kernels.cpu.packed.formats import FORMATS
from lamella.kernels.quants import LAYOUTS

VALUES: Final = 32  # values of a column that share a scale
LARGEST_SCALE: Final = 0.1  # of random blocks
SCALES: Final = frozenset({"d", "dmin", "m"})  # the fields that hold them, as float16

# the field of scales that are not float16, and the values of its 256 bytes
SCALES_OF_8_BITS: Final = {
    GGMLType.MXFP4: ("e", 2.0 ** (np.arange(256.0) - 128)),
    GGMLType.NVFP4: ("d", quants.NVFP4.ue4m3_to_fp32(np.arange(256, dtype=np.uint8))),
}

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class PackedMemory(np.ndarray):
    """Memory of packed weights, for `tensor.buffer` in these tests."""

    buft: BufferType
    plain: Tensor


def packed(plain: Tensor) -> Tensor:
    """The same weights, packed in a `RepackBuffer`."""
    t = Tensor(plain.type, plain.ne)
    buffer = buffer_of(t)
    buffer.set_tensor(t, np.ascontiguousarray(data(plain)))
    memory = buffer.memory.view(PackedMemory)
    memory.buft, memory.plain = buffer.buft, plain
    t.buffer = memory
    return t


def buffer_of(t: Tensor, n_threads: int = 1) -> RepackBuffer:
    """A new buffer for a tensor, filled with nonzero bytes."""
    [buffer] = alloc_tensors([t], RepackBufferType(n_threads))
    assert isinstance(buffer, RepackBuffer)
    buffer.clear(reference_run.GUARD)
    return buffer


# --- weights ---


def random_bytes(type: GGMLType, *shape: int, seed: int = 0) -> Tensor:
    """Weights of random bytes: values may be infinite or NaN."""
    t = Tensor(type, shape[::-1])
    place(t)
    bytes_of(t)[...] = np.random.default_rng([int(type), seed]).integers(0, 256, t.nbytes, np.uint8)
    return t


def random_weights(type: GGMLType, *shape: int, seed: int = 0) -> Tensor:
    """Weights of random bytes with scales of up to 0.1, so that values are finite."""
    rng = np.random.default_rng([seed, int(type)])
    if not type.is_quantized:
        return leaf(rng.standard_normal(shape), type)
    t = random_bytes(type, *shape, seed=seed)
    set_scales(t, lambda n: rng.uniform(-LARGEST_SCALE, LARGEST_SCALE, n))
    return t


def exact_weights(type: GGMLType, *shape: int) -> Tensor:
    """Weights that are integers: scales of whole blocks are 1."""
    if not type.is_quantized:
        return leaf(np.random.default_rng(int(type)).integers(-128, 128, shape), type)
    t = random_bytes(type, *shape)
    set_scales(t, np.ones)
    return t


def set_scales(t: Tensor, scales: Callable[[int], Array]) -> None:
    """Replace the scales of whole blocks of quantized weights."""
    blocks = bytes_of(t).reshape(-1, t.type.type_size).view(LAYOUTS[t.type])[:, 0]
    if t.type in SCALES_OF_8_BITS:
        name, values = SCALES_OF_8_BITS[t.type]
        wanted = np.abs(scales(blocks[name].size)).reshape(blocks[name].shape)
        blocks[name] = np.abs(values - wanted[..., None]).argmin(-1)
        return
    if t.type is GGMLType.IQ1_M:  # 4 bits are the highest of each field of scales
        bits = np.asarray(scales(len(blocks)), np.float16).view(np.uint16)[:, None]
        parts = (bits >> np.array([0, 4, 8, 12], np.uint16) & 15) << 12
        blocks["scales"] = blocks["scales"] & 0xFFF | parts
        return
    for name in SCALES.intersection(LAYOUTS[t.type].names or ()):
        blocks[name] = scales(len(blocks))


def bytes_of(t: Tensor) -> Bytes:
    """The memory of unpacked weights."""
    memory: Bytes = t.buffer[t.offset : t.offset + t.nbytes]
    return memory


# --- the products in NumPy ---


def packed_bytes(type: GGMLType, raw: Bytes, n_values: int) -> Bytes:
    """A matrix's rows of `n_values`, in whole groups of 16, packed as `formats.py` defines."""
    form = FORMATS[type]
    n_rows = raw.size // type.row_size(n_values)
    padded = np.zeros((-(-n_rows // 16) * 16, type.row_size(n_values)), np.uint8)
    padded[:n_rows] = raw.reshape(n_rows, -1)
    blocks = padded.reshape(len(padded) // 16, 16, -1, type.type_size).swapaxes(1, 2)
    parts = []
    for _, offset, size, unit in form.parts:
        field = blocks[..., offset : offset + size]
        if unit == 5:  # 32 bits; bit 4 * j + b becomes bit j of byte b
            bits = np.unpackbits(field, axis=-1, bitorder="little")
            bits = bits.reshape(*bits.shape[:-1], 8, 4).swapaxes(-1, -2)
            field = np.packbits(bits, axis=-1, bitorder="little")[..., 0]
        units = field.reshape(*field.shape[:-1], -1, min(unit, 4)).swapaxes(2, 3)
        parts.append(units.reshape(*units.shape[:2], -1))
    return np.concatenate(parts, axis=-1).ravel()


def quantized(x: npt.ArrayLike) -> tuple[npt.NDArray[np.float64], F32Array]:
    """Columns as blocks of 32 integers, and their scales: the largest value becomes 127."""
    blocks = np.asarray(x, np.float32)
    blocks = blocks.reshape(*blocks.shape[:-1], -1, VALUES)
    scale = np.abs(blocks).max(axis=-1) * np.float32(1 / 127)
    with np.errstate(divide="ignore"):
        inverse = np.where(scale > np.float32(1e-30), np.float32(1) / scale, np.float32(0))
    # products of two floats are exact; ties round to even
    return np.rint(blocks.astype(np.float64) * inverse[..., None].astype(np.float64)), scale


def product(weights: Tensor, x: npt.ArrayLike) -> F64Array:
    """Rows of unpacked weights times quantized or rounded columns [..., k]: [..., n]."""
    if FORMATS[weights.type].in_pairs(weights.ne[0]):
        return exact_product(weights, values_of(leaf(x, weights.type)))
    if not weights.type.is_quantized:
        return exact_product(weights, x)
    q, scale = quantized(x)
    return exact_product(weights, (q * scale[..., None]).reshape(np.shape(x)))


def exact_product(weights: Tensor, x: npt.ArrayLike) -> F64Array:
    """Rows of weights times columns [..., k]: [..., n]. Experts: [..., n_expert, n]."""
    rows = values_of(weights)[0]
    result: F64Array = np.tensordot(np.asarray(x, np.float64), rows, (-1, -1))
    return result[..., 0, :] if len(rows) == 1 else result


def nmse(actual: Array, expected: Array) -> float:
    """Mean square error relative to the mean square."""
    difference = np.square(np.asarray(actual, np.float64) - expected).sum()
    return float(difference / max(np.square(np.asarray(expected, np.float64)).sum(), 1e-30))
