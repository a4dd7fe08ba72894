"""Graphs in tiny buffers, so that they need several of them (after ggml's test-alloc).

Tensor sizes are in bytes. The alignment is 8.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from memory_types import leaf

from lamella.alloc import GraphAllocator, HostBufferType
from lamella.graph import GGMLType, Graph, Op, Tensor, ops


def inp(name: str, n_bytes: int) -> Tensor:
    return leaf(name, n_bytes // 4).set_input()


def node(op: Op, n_bytes: int, *src: Tensor) -> Tensor:
    """A node of any size: the allocator does not care what it computes."""
    return Tensor(GGMLType.F32, (n_bytes // 4,), op=op, src=src)


def place(max_size: int, *outputs: Tensor) -> tuple[GraphAllocator, list[tuple[int, int]]]:
    """Allocate. Return also (chunk, offset) of each leaf, then of each node."""
    galloc = GraphAllocator([HostBufferType(alignment=8, max_size=max_size)])
    graph = Graph(*outputs)
    placed = galloc.alloc_graph(graph)
    assert placed == [*graph.leafs, *graph.nodes]
    return galloc, [(galloc.buffers[0].index(t.buffer), t.offset) for t in placed]


def sizes(galloc: GraphAllocator) -> list[int]:
    return [b.size for b in galloc.buffers[0]]


def test_too_many_tensors_for_one_buffer() -> None:
    x0, x1, x2 = (inp(f"x{i}", 8) for i in range(3))
    x3, x4 = ops.mul(x0, x1), ops.add(x1, x2)
    x5 = ops.add(x3, x0)
    galloc, places = place(16, ops.add(x4, x5))
    assert places == [(0, 0), (0, 8), (1, 0), (0, 8), (0, 0), (0, 0), (0, 8)]
    assert sizes(galloc) == [16, 8]


def test_a_tensor_too_large_for_the_rest_of_a_buffer() -> None:
    x0, x1 = inp("x0", 16), inp("x1", 8)
    galloc, places = place(32, ops.concat(x0, x1, 0))
    assert places == [(0, 0), (0, 16), (1, 0)]
    assert sizes(galloc) == [24, 24]


def test_a_tensor_larger_than_a_buffer() -> None:
    x = inp("x", 24)
    galloc, places = place(16, ops.scale(x, 2))
    assert places == [(0, 0), (0, 0)]
    assert sizes(galloc) == [24]


def test_more_tensors_than_allowed_buffers() -> None:
    """The last buffer takes the rest; the type may fail to allocate it."""
    total = inp("x", 8)
    for i in range(20):
        total = ops.add(total, inp(f"x{i}", 8))
    galloc, places = place(8, total)
    assert sizes(galloc) == [8] * 15 + [6 * 8]
    assert len(set(places[:21])) == 21


def test_free_space_in_a_buffer_is_filled() -> None:
    x = inp("x", 8)
    padded = node(Op.REPEAT, 16, x)  # needs a second buffer
    galloc, places = place(16, node(Op.SUM_ROWS, 8, padded))
    assert places == [(0, 0), (1, 0), (0, 0)]
    assert sizes(galloc) == [8, 16]


def test_views_need_no_buffer() -> None:
    x = inp("x", 16)
    view = ops.view(ops.permute(ops.reshape(x, (2, 2)), (1, 0, 2, 3)), (2,), offset=8)
    galloc, places = place(32, ops.add(view, inp("y", 8)))
    assert places == [(0, 0), (0, 16), (0, 0), (0, 0), (0, 8), (0, 16)]
    assert sizes(galloc) == [24]


def test_buffers_are_reused() -> None:
    x0, x1, x2 = inp("x0", 24), inp("x1", 8), inp("x2", 8)
    x3 = ops.add(x1, x2)  # in place of x1; x2 is free
    x4 = node(Op.REPEAT, 32, x0)  # a new buffer; x0 is free
    x5 = ops.scale(x4, 2)  # where x2 and x0 were: x4 is still needed
    x6 = ops.add(x4, x5)  # in place of x4
    x8 = ops.add(x3, ops.view(x6, (2,), offset=8))  # in place of x3
    galloc, places = place(40, x8)
    leafs, nodes = [(0, 0), (0, 8), (0, 16)], [(0, 0), (1, 0), (0, 8), (1, 0), (1, 8), (0, 0)]
    assert places == leafs + nodes
    assert sizes(galloc) == [40, 32]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_freed_neighbors_become_one_block(order: Sequence[int]) -> None:
    x = [inp(f"x{i}", 16) for i in range(3)]
    total = node(Op.CONCAT, 8, *(x[i] for i in order))  # frees them in this order
    galloc, places = place(48, *x, node(Op.REPEAT, 48, total))
    assert places == [(0, 0), (0, 16), (0, 32), (1, 0), (0, 0)]
    assert sizes(galloc) == [48, 8]


def test_memory_used_before_is_preferred() -> None:
    """Even if the space at the end of the buffer would fit better."""
    x = inp("x", 24)
    first = node(Op.SUM_ROWS, 8, x)
    galloc, places = place(40, node(Op.SUM_ROWS, 8, first))
    assert places == [(0, 0), (0, 24), (0, 0)]
    assert sizes(galloc) == [32]


def test_a_second_graph_may_need_less_of_one_buffer_and_more_of_another() -> None:
    galloc = GraphAllocator([HostBufferType(alignment=8, max_size=32)])
    first = Graph(ops.add(ops.view(inp("x0", 24), (4,)), inp("x1", 16)))
    galloc.alloc_graph(first)
    assert sizes(galloc) == [24, 16]
    second = Graph(node(Op.ADD, 16, inp("x0", 16), inp("x1", 24)))
    galloc.alloc_graph(second)
    assert sizes(galloc) == [24, 24]
    assert [t.offset for t in (*second.leafs, *second.nodes)] == [0, 0, 0]
