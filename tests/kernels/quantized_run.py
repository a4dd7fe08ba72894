"""Quantized products by CUDA kernels, and their NumPy twin, for the tests of these kernels.

The twin unpacks blocks (quantized_blocks.py) and takes the float steps of src/blocks.cuh in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import cuda_run
import numpy as np
import numpy.typing as npt
import pytest
from packed_run import bytes_of, random_weights
from quantized_blocks import BLOCK, CHUNK, F32Array, IntArray, unpacked
from reference_run import Array, ids, leaf, locate, normal, place

from lamella.graph import GGMLType, GluOp, Graph, Tensor, ops
from lamella.kernels.cuda.ops import matrix, tensor_core
from lamella.kernels.cuda.ops.quantized import TYPES
from lamella.kernels.cuda.ops.tensor_core import TILES, Tile

Bits = npt.NDArray[np.uint32]

N_ROWS = 37  # two whole tiles of rows, and a part
SOME = (GGMLType.Q5_1, GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.IQ2_S)  # one of each kind
MORE = (GGMLType.Q4_0, GGMLType.Q2_K)
some_types = pytest.mark.parametrize(  # --full: two more
    "type",
    [*SOME, *(pytest.param(type, marks=pytest.mark.full) for type in MORE)],
    ids=lambda type: type.name,
)


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


def each_type_with(*kernels: Kernel) -> pytest.MarkDecorator:
    """All types with these kernels. Types that only unpack differently have `WIDE` alone; --full
    adds the others."""

    def marks(kernel: Kernel, type: GGMLType) -> Any:
        further = kernel is not WIDE and type in cuda_run.FURTHER_TYPES
        return pytest.mark.full if further else ()

    return pytest.mark.parametrize(
        ("kernel", "type"),
        [
            pytest.param(kernel, type, marks=marks(kernel, type), id=f"{kernel}-{type.name}")
            for kernel in kernels
            for type in TYPES
        ],
    )


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
    total = np.zeros((len(x), t.ne[1]), np.float32)
    for first in range(0, q.shape[1], CHUNK // BLOCK):
        s = np.zeros_like(total)
        for b in range(first, min(first + CHUNK // BLOCK, q.shape[1])):
            parts = w.integers[:, b].reshape(-1, 2, 16) * w.sub[:, b, :, None]
            halves = q[:, b].reshape(-1, 2, 16)
            if in_16:
                isum, a_sum = (halves[:, i] @ parts[:, i].T for i in (0, 1))
            else:
                isum, a_sum = q[:, b] @ parts.reshape(-1, BLOCK).T, halves.sum(-1) @ w.low[:, b].T
            s = fma(w.scale[:, b] * a_d[:, b, None], isum.astype(np.float32), s)
            if w.min is not None:
                s = fma(w.min[:, b] * a_d[:, b, None], a_sum.astype(np.float32), s)
        total += s
    return total
