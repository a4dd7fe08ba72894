"""Tensors with data, and one op computed, for the tests of the reference kernels.

Every tensor has its own memory between guard bytes, in `tensor.buffer`; a write outside of the
tensor fails the test. Arrays have the shape of `ne` reversed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType

from lamella.alloc import array_of
from lamella.graph import GGMLType, Graph, Op, Tensor, UnaryOp, ops
from lamella.graph.op import VIEW_OPS
from lamella.kernels.plan.calls import CallT
from lamella.kernels.reference import KERNELS, supports_op
from lamella.kernels.reference.arrays import can_dequantize, can_quantize, from_f32

Array = npt.NDArray[Any]
F64Array = npt.NDArray[np.float64]

GUARD = 0xA5
N_GUARD = 64

DECODED = [t for t in GGMLType if can_dequantize(t)]
ENCODED = [t for t in GGMLType if can_quantize(t)]

# relative error of a result stored in the type
ERROR = {GGMLType.F32: 2e-6, GGMLType.F16: 1e-3, GGMLType.BF16: 8e-3}


XIELU = (1.3, 0.8, 0.5, -1e-6)  # alpha_n, alpha_p, beta, eps


def unary(a: Tensor, op: UnaryOp) -> Tensor:
    """A UNARY, also one that has parameters."""
    return ops.xielu(a, *XIELU) if op is UnaryOp.XIELU else ops.unary(a, op)


def each_type(types: Iterable[GGMLType]) -> pytest.MarkDecorator:
    """Parametrize `type`, with readable test names."""
    return pytest.mark.parametrize("type", list(types), ids=lambda t: t.name)


def normal(*shape: int, seed: int = 0) -> F64Array:
    """Random numbers that float32 represents exactly."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return x.astype(np.float64)


def leaf(values: npt.ArrayLike, type: GGMLType = GGMLType.F32, shift: int = 0) -> Tensor:
    """A leaf with these values, at an address that is `shift` bytes off its alignment.

    Types that gguf cannot encode get random blocks instead: read them back with `values_of`.
    """
    x = np.asarray(values)
    t = Tensor(type, x.shape[::-1])
    place(t, shift)
    if t.is_empty:
        return t
    if type is GGMLType.BF16:
        data(t)[...] = quants.quantize(x.astype(np.float32), _quant(type)).view(np.uint16)
    elif not type.is_quantized:
        data(t)[...] = x
    elif type in ENCODED:
        data(t)[...] = from_f32(type, x.astype(np.float32))
    else:
        data(t)[...] = _blocks(type, t.n_elements // type.block_size).reshape(data(t).shape)
    return t


def ids(values: npt.ArrayLike, type: GGMLType = GGMLType.I32) -> Tensor:
    """A leaf of integers."""
    return leaf(np.asarray(values, np.int64), type)


def place(t: Tensor, shift: int = 0) -> None:
    """Give a tensor its own memory, full of guard bytes."""
    t.buffer = np.full(t.nbytes + 2 * N_GUARD + shift, GUARD, np.uint8)
    t.offset = N_GUARD + shift


def data(t: Tensor) -> Array:
    """The tensor's array as kernels see it; for packed weights, the unpacked array."""
    if hasattr(t.buffer, "plain"):
        return data(t.buffer.plain)
    return array_of(t, t.buffer)


def values_of(t: Tensor) -> F64Array:
    """A tensor's values, decoded without the code under test."""
    raw = data(t)
    if t.is_empty:
        return np.zeros(t.ne[::-1])
    if t.type is GGMLType.BF16:
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if t.type.is_quantized:
        rows = np.ascontiguousarray(raw)
        return np.asarray(quants.dequantize(rows, _quant(t.type)), np.float64)
    return raw.astype(np.float64)


def compute(node: Tensor, over: Tensor | None = None, shift: int = 0) -> Tensor:
    """Compute a node, after its sources that have no data yet.

    Args:
        node: the node.
        over: a tensor whose memory the result shares.
        shift: bytes off the alignment.
    """
    for src in node.src:
        if src.buffer is None:
            compute(src)
    locate(node, over, shift)
    assert supports_op(node)
    if node.op is not Op.NONE and node.op not in VIEW_OPS:
        KERNELS[node.op](node, data(node), [data(src) for src in node.src])
    _check_guards(node.root)
    return node


def locate(node: Tensor, over: Tensor | None = None, shift: int = 0) -> None:
    """Give a node its memory: its source's if it is a view, that of `over`, or its own."""
    if node.view_src is not None:
        node.buffer, node.offset = node.root.buffer, node.root.offset + node.view_offs
    elif over is not None:
        node.buffer, node.offset = over.buffer, over.offset
    else:
        place(node, shift)


def located(*outputs: Tensor, shift: int = 0) -> Graph:
    """A graph whose nodes have their own memory."""
    graph = Graph(*outputs)
    for node in graph.nodes:
        locate(node, shift=shift)
    return graph


def graph_of(*nodes: Tensor) -> Graph:
    """A graph that computes these nodes one by one, in this order."""
    graph = Graph()
    graph.nodes = list(nodes)
    return graph


def with_prepared(calls: Iterable[CallT]) -> Iterator[CallT]:
    """The calls of a plan, each after the calls that prepare its sources."""
    for call in calls:
        for source in call.prepared:
            yield from source.calls
        yield call


def run(node: Tensor) -> F64Array:
    """Compute a node and return its values."""
    return values_of(compute(node))


def bits(node: Tensor) -> bytes:
    """Compute a node and return its bytes."""
    return data(compute(node)).tobytes()


def assert_close(actual: Array, expected: Array, error: float = 2e-6) -> None:
    """Check for equal shapes, NaN and inf in the same places, and a difference of the rest of at
    most `error` times the largest value."""
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(actual, expected, rtol=error, atol=error * scale, strict=True)


def relative_error(actual: Array, expected: Array) -> float:
    """Mean square error relative to the mean square; infinite if NaN or inf differ."""
    finite = np.isfinite(expected)
    if not np.array_equal(actual[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    difference = np.square(actual[finite] - expected[finite]).sum()
    return float(difference / max(np.square(expected[finite]).sum(), 1e-30))


def _check_guards(t: Tensor) -> None:
    end = t.offset + t.nbytes
    assert (t.buffer[: t.offset] == GUARD).all(), f"{t}: bytes before it were written"
    assert (t.buffer[end:] == GUARD).all(), f"{t}: bytes after it were written"


def _blocks(type: GGMLType, n: int) -> Array:
    # random bytes, of which scales may be large or NaN; tiny blocks test nothing
    rng = np.random.default_rng(int(type))
    blocks = rng.integers(0, 256, (64 * n, type.type_size), np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.abs(quants.dequantize(blocks, _quant(type))).max(axis=-1)
    good: Array = blocks[(largest > 0.01) & (largest < 1000)][:n]
    assert len(good) == n, f"{type.name}: only {len(good)} of {n} blocks are good"
    return good


def _quant(type: GGMLType) -> GGMLQuantizationType:
    return GGMLQuantizationType(int(type))
