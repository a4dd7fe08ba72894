"""Quantized products by CUDA kernels, and their NumPy twin, for the tests of these kernels.

The twin unpacks blocks by their layouts and takes the float steps of src/blocks.cuh one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final, NamedTuple
from unittest.mock import patch

import cuda_run
import numpy as np
import numpy.typing as npt
from gguf import quants
from packed_run import SCALES_OF_8_BITS, bytes_of, random_weights
from reference_run import Array, ids, leaf, locate, normal, place

from lamella.graph import GGMLType, GluOp, Graph, Tensor, ops
from lamella.kernels.cuda.ops import matrix, tensor_core
from lamella.kernels.cuda.ops.tensor_core import TILES, Tile
from lamella.kernels.quants import LAYOUTS

F32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint32]

BLOCK, CHUNK = 32, 256
N_ROWS = 37  # two whole tiles of rows, and a part
SOME = (GGMLType.Q4_0, GGMLType.Q5_1, GGMLType.Q4_K, GGMLType.Q6_K)  # one of each kind


def lengths(type: GGMLType) -> tuple[int, ...]:
    """Lengths of rows: within a chunk, at its end, with a chunk for each warp, of two rounds."""
    if type.block_size == 64:
        return 64, 192, 256, 448, 2368
    return (256, 512, 2560) if type.block_size > BLOCK else (32, 160, 256, 416, 2336)


class Kernel(NamedTuple):
    """The kernel for few columns, or tiles of tensor cores if there is a tile."""

    tile: Tile | None
    n_columns: int  # that it is made for

    def __str__(self) -> str:
        return str(self.tile or "few")


FEW: Final = Kernel(None, 8)
WIDE: Final = Kernel(TILES[0], 9)
SPLIT: Final = Kernel(Tile(2, 2, 1, 2), 9)  # its warps share the chunks of K
assert SPLIT.tile in TILES


@contextmanager
def only(kernel: Kernel) -> Iterator[None]:
    """Compute all products by a kernel in the block."""
    with (
        patch.object(matrix, "_is_few", lambda _: kernel.tile is None),
        patch.object(tensor_core, "_tile", lambda *_: kernel.tile),
    ):
        yield


def bits_of(array: Array) -> Bits:
    """The columns of a result, [m, n], as bits."""
    return array.reshape(-1, array.shape[-1]).astype(np.float32).view(np.uint32)


def product(kernel: Kernel, w: Tensor, x: Tensor | Array, reverse: bool = False) -> Bits:
    node = ops.mul_mat(w, x if isinstance(x, Tensor) else leaf(x))
    with only(kernel):
        return bits_of(cuda_run.compute(node, reverse=reverse))


def of_experts(kernel: Kernel, w: Tensor, x: Array, chosen: Tensor | Array) -> Bits:
    """The bits of a MUL_MAT_ID, [n_tokens, n_used, n]."""
    node = ops.mul_mat_id(w, leaf(x), chosen if isinstance(chosen, Tensor) else ids(chosen))
    with only(kernel):
        found: Bits = cuda_run.compute(node).view(np.uint32)[0]
    return found


def expected(w: Tensor, x: Array) -> Bits:
    return twin(w, x.reshape(-1, x.shape[-1])).view(np.uint32)


def of_each_expert(w: Tensor, x: Array) -> Bits:
    """The bits of all columns with all experts, [n_expert, columns, n]."""
    found = []
    for e in range(w.ne[2]):
        one = Tensor(w.type, w.ne[:2])
        one.buffer, one.offset = w.buffer, w.offset + e * w.nb[2]
        found.append(expected(one, x))
    return np.stack(found)


@cache
def weights(type: GGMLType, n: int, k: int, seed: int = 0) -> Tensor:
    return random_weights(type, n, k, seed=seed)


def copied(w: Tensor, shift: int) -> Tensor:
    """A matrix at an address that is `shift` bytes off its alignment."""
    t = Tensor(w.type, w.ne)
    place(t, shift)
    bytes_of(t)[...] = bytes_of(w)
    return t


def gated(type: GGMLType, n: int, k: int, m: int, op: GluOp = GluOp.SWIGLU) -> Graph:
    a, b = (weights(type, n, k, seed=s) for s in range(2))
    columns = leaf(normal(m, k, seed=1))
    return Graph(ops.glu(ops.mul_mat(a, columns), ops.mul_mat(b, columns), op))


def run_graph(graph: Graph, fuse: bool = True) -> list[str]:
    for node in graph.nodes:
        locate(node)
    return cuda_run.run_graph(graph, fuse)


# --- the twin ---


class Blocks(NamedTuple):
    """Weights by blocks of 32: `scale` * (`sub` * integer) and `min`. Integers are [n, blocks, 32],
    `sub` is [n, blocks, 2], one for 16 integers each. In NVFP4, `scale` and `min` are the scales of
    the first and the last 16 integers."""

    integers: IntArray
    sub: IntArray
    scale: F32Array
    min: F32Array


def halves(bytes: Array, run: int) -> IntArray:
    """The nibbles of each `run` bytes: all low ones, then all high ones."""
    runs = bytes.reshape(*bytes.shape[:-1], -1, run).astype(np.int64)
    return np.concatenate([runs & 15, runs >> 4], axis=-1).reshape(*bytes.shape[:-1], -1)


def unpacked(t: Tensor) -> Blocks:
    """The blocks of a matrix of weights."""
    raw = bytes_of(t).reshape(-1, t.type.type_size).view(LAYOUTS[t.type])[:, 0]
    n, blocks = t.ne[1], t.ne[0] // BLOCK
    names = LAYOUTS[t.type].names or ()
    if t.type in SCALES_OF_8_BITS:
        q, sub, scale, low = _of_e2m1(t.type, raw)
    elif t.type.block_size > BLOCK:
        q, sub, scale, low = _of_256(raw, names)
    else:
        q, sub, scale, low = _of_32(raw, names)
    return Blocks(
        q.reshape(n, blocks, BLOCK),
        np.broadcast_to(sub, (*sub.shape[:-1], 2)).reshape(n, blocks, 2),
        scale.reshape(n, blocks),
        low.reshape(n, blocks),
    )


Parts = tuple[IntArray, IntArray, F32Array, F32Array]


def _of_32(raw: Array, names: tuple[str, ...]) -> Parts:
    q = raw["qs"].astype(np.int64) if raw["qs"].shape[1] == BLOCK else halves(raw["qs"], 16)
    bits = 4
    if "qh" in names:
        q += (raw["qh"].astype(np.int64)[:, None] >> np.arange(BLOCK) & 1) << 4
        bits = 5
    if "m" not in names and raw["qs"].shape[1] < BLOCK:
        q -= 1 << (bits - 1)
    scale = raw["d"].astype(np.float32)
    low = raw["m"].astype(np.float32) if "m" in names else np.zeros_like(scale)
    return q, np.ones((len(raw), 1, 1), np.int64), scale, low


def _of_e2m1(type: GGMLType, raw: Array) -> Parts:
    name, values = SCALES_OF_8_BITS[type]
    scale = values.astype(np.float32)[raw[name]].reshape(len(raw), -1)
    run = 8 if type is GGMLType.NVFP4 else 16
    q = np.array(quants.MXFP4.kvalues, np.int64)[halves(raw["qs"], run)]
    if type is GGMLType.MXFP4:
        return q, np.ones((len(raw), 1, 1), np.int64), scale, np.zeros_like(scale)
    return q, np.ones((len(raw), 2, 1), np.int64), scale[:, ::2], scale[:, 1::2]


def _of_256(raw: Array, names: tuple[str, ...]) -> Parts:
    d = raw["d"].astype(np.float32)[:, None]
    scales = raw["scales"].astype(np.int64)
    if "ql" in names:
        high = raw["qh"].astype(np.int64).reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2)[:, None] & 3
        q = halves(raw["ql"], 64) + (high.reshape(-1, CHUNK) << 4) - 32
        return q, scales.reshape(-1, 8, 2), np.repeat(d, 8, 1), np.zeros((len(d), 8), np.float32)
    q = halves(raw["qs"], 32)
    if "qh" in names:
        fifth = raw["qh"].astype(np.int64)[:, None, :] >> np.arange(8)[:, None] & 1
        q += fifth.reshape(-1, CHUNK) << 4
    a, b, c = scales[:, :4], scales[:, 4:8], scales[:, 8:]
    scale = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=1).astype(np.float32)
    low = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=1).astype(np.float32)
    ones = np.ones((len(raw), 8, 1), np.int64)
    return q, ones, d * scale, -(raw["dmin"].astype(np.float32)[:, None] * low)


def fma(a: F32Array, b: F32Array, c: F32Array) -> F32Array:
    """a * b + c, rounded once: in float64 the product is exact, and the sum is rounded to odd."""
    p, c64 = a.astype(np.float64) * b, c.astype(np.float64)
    s = p + c64
    back = s - p
    error = (p - (s - back)) + (c64 - back)
    bits = s.view(np.int64)
    toward = np.where(np.signbit(error) == np.signbit(s), 1, -1)
    odd = bits + np.where((error != 0) & (bits % 2 == 0), toward, 0)
    return odd.view(np.float64).astype(np.float32)


def columns_of(x: Array) -> tuple[IntArray, F32Array]:
    """Columns [m, k] as integers [m, blocks, 32] and their scales."""
    blocks = x.astype(np.float32).reshape(len(x), -1, BLOCK)
    scale = np.abs(blocks).max(axis=-1) / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(scale > 1e-30, np.float32(1) / scale, np.float32(0))
    q = np.clip(np.rint(blocks * inverse[..., None]), -127, 127)
    return q.astype(np.int64), scale


def twin(t: Tensor, x: Array) -> F32Array:
    """The products of weights [n, k] and columns [m, k]: [m, n]."""
    w, (q, a_d) = unpacked(t), columns_of(x)
    in_16 = t.type is GGMLType.NVFP4
    has_min = in_16 or {"m", "dmin"} & set(LAYOUTS[t.type].names or ())
    total = np.zeros((len(x), t.ne[1]), np.float32)
    for first in range(0, q.shape[1], CHUNK // BLOCK):
        s = np.zeros_like(total)
        for b in range(first, min(first + CHUNK // BLOCK, q.shape[1])):
            parts = w.integers[:, b].reshape(-1, 2, 16) * w.sub[:, b, :, None]
            if in_16:
                isum, a_sum = (q[:, b].reshape(-1, 2, 16)[:, i] @ parts[:, i].T for i in (0, 1))
            else:
                isum, a_sum = q[:, b] @ parts.reshape(-1, BLOCK).T, q[:, b].sum(-1)[:, None]
            s = fma(w.scale[:, b] * a_d[:, b, None], isum.astype(np.float32), s)
            if has_min:
                s = fma(w.min[:, b] * a_d[:, b, None], a_sum.astype(np.float32), s)
        total += s
    return total
