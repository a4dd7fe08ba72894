"""In-place reuse: when a node takes over the memory of one of its sources, and when it must not.

Every tensor has 4 floats, 16 bytes, unless stated otherwise; the alignment is 16. A leaf takes
[0, 16), a node made of it by `cont` takes [16, 32), and a third tensor could go to 0 again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from memory_types import PaddingBufferType, allocated, hold, leaf

from lamella.alloc import GraphAllocator, HostBufferType
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.graph.op import VIEW_OPS

MAY_WORK_IN_PLACE = {
    Op.FILL,
    Op.SCALE,
    Op.DIAG_MASK_ZERO,
    Op.DIAG_MASK_INF,
    Op.ADD,
    Op.ADD_ID,
    Op.SUB,
    Op.MUL,
    Op.DIV,
    Op.SQR,
    Op.SQRT,
    Op.LOG,
    Op.UNARY,
    Op.ROPE,
    Op.RMS_NORM,
    Op.CLAMP,
    Op.SOFT_MAX,
    Op.LORA_B,
}
COMPUTING_OPS = [op for op in Op if op is not Op.NONE and op not in VIEW_OPS]


def shared(a: Tensor, b: Tensor) -> bool:
    return a.buffer is b.buffer and a.offset == b.offset


@pytest.mark.parametrize("op", COMPUTING_OPS, ids=lambda op: op.name)
def test_which_ops_work_in_place(op: Op) -> None:
    parent = ops.cont(leaf("x", 4))
    node = Tensor(GGMLType.F32, (4,), op=op, src=[parent])  # enough for the allocator
    galloc = allocated(node)
    assert (parent.offset, node.offset) == (16, 16 if op in MAY_WORK_IN_PLACE else 0)
    assert galloc.buffer_sizes() == [32]


def test_a_chain_works_in_place_throughout() -> None:
    x = leaf("x", 4)
    galloc = allocated(ops.clamp(ops.rms_norm(ops.silu(ops.scale(x, 2)), 1e-5), 0, 1))
    assert galloc.buffer_sizes() == [16]


def test_a_leaf_may_be_taken_over() -> None:
    """An input as well: it is written before each computation."""
    x = leaf("x", 4).set_input()
    node = ops.sqr(x)
    galloc = allocated(node)
    assert shared(node, x)
    assert galloc.buffer_sizes() == [16]


# --- which source ---


def test_only_the_first_source_is_taken_over_if_others_are_read_in_any_order() -> None:
    ids = leaf("ids", 1, type=GGMLType.I32)
    a, b = ops.cont(leaf("x", 4)), ops.cont(leaf("y", 4))
    node = ops.add_id(a.set_output(), b, ids)
    allocated(node)
    assert not shared(node, a) and not shared(node, b)
    a, b = ops.cont(leaf("x", 4)), ops.cont(leaf("y", 4))
    node = ops.add_id(a, b, ids)
    allocated(node)
    assert shared(node, a)
    y, b, z = (ops.cont(Tensor(GGMLType.F32, (2, 2), name=name)) for name in "ybz")
    node = ops.lora_b(y.set_output(), b, z)
    allocated(node)
    assert not any(shared(node, src) for src in (y, b, z))


def test_the_first_source_that_can_be_taken_is_taken() -> None:
    a, b = ops.cont(leaf("x", 4)), ops.cont(leaf("y", 4))
    node = ops.add(a, b)
    galloc = allocated(node)
    assert shared(node, a)
    assert not shared(a, b)
    assert len(galloc.buffer_sizes()) == 1


def test_a_later_source_is_taken_if_the_first_cannot() -> None:
    a, b = ops.cont(leaf("x", 4)).set_output(), ops.cont(leaf("y", 4))
    node = ops.add(a, b)
    galloc = allocated(node)
    assert shared(node, b)
    assert not shared(a, b)
    assert len(galloc.buffer_sizes()) == 1


def test_an_in_place_node_stays_in_its_source_s_buffer_type() -> None:
    """The node's own buffer type does not matter when a source's memory is taken over."""
    bufts = [HostBufferType(name, alignment=16) for name in ("A", "B")]
    parent = ops.cont(leaf("x", 4))
    node = ops.sqr(parent)
    galloc = GraphAllocator(bufts)
    graph = Graph(node)
    galloc.reserve(graph, [0, 1], [0])
    galloc.alloc_graph(graph)
    assert shared(node, parent)
    assert galloc.buffer_sizes() == [32, 0]


# --- when it must not ---


def a_second_reader(parent: Tensor) -> list[Tensor]:
    return [ops.scale(parent, 2), ops.repeat(parent, (8,))]


def itself_twice(parent: Tensor) -> list[Tensor]:
    return [ops.add(parent, parent)]


def the_flag_output(parent: Tensor) -> list[Tensor]:
    return [ops.scale(parent.set_output(), 2)]


def an_output_that_is_a_view(parent: Tensor) -> list[Tensor]:
    return [ops.reshape(parent, (2, 2)).set_output(), ops.scale(parent, 2)]


def fewer_elements(parent: Tensor) -> list[Tensor]:
    return [Tensor(GGMLType.F32, (2,), op=Op.SCALE, src=[parent])]


def another_shape(parent: Tensor) -> list[Tensor]:
    return [Tensor(GGMLType.F32, (2, 2), op=Op.SCALE, src=[parent])]


def another_type(parent: Tensor) -> list[Tensor]:
    return [Tensor(GGMLType.I32, (4,), op=Op.SCALE, src=[parent])]


def other_strides(parent: Tensor) -> list[Tensor]:
    nb = (4, 16, 16, 32)
    return [Tensor(GGMLType.F32, (4,), nb=nb, op=Op.SCALE, src=[parent])]


def a_view_of_it(parent: Tensor) -> list[Tensor]:
    """Even if nothing else needs the memory, and the view is as large as its source."""
    return [ops.scale(ops.view(parent, (4,)), 2)]


REASONS = [
    a_second_reader,
    itself_twice,
    the_flag_output,
    an_output_that_is_a_view,
    fewer_elements,
    another_shape,
    another_type,
    other_strides,
    a_view_of_it,
]


@pytest.mark.parametrize("make", REASONS)
def test_a_source_is_not_taken_over(make: Callable[[Tensor], list[Tensor]]) -> None:
    parent = ops.cont(leaf("x", 4))
    outputs = make(parent)
    galloc = allocated(*outputs)
    (node,) = (t for t in outputs if t.op in MAY_WORK_IN_PLACE)
    assert not shared(node, parent)
    assert len(galloc.buffer_sizes()) == 1


def test_equal_strides_are_not_an_equal_layout() -> None:
    parent = ops.cont(leaf("x", 4, 1, 1, 2))
    node = Tensor(GGMLType.F32, (4,), op=Op.SCALE, src=[parent])
    assert node.nb == parent.nb
    galloc = allocated(node)
    assert not shared(node, parent)
    assert len(galloc.buffer_sizes()) == 1


def test_a_source_with_a_place_of_its_own_is_not_taken_over() -> None:
    parent = leaf("w", 4)
    kept = hold(parent)
    node = ops.scale(parent, 2)
    galloc = allocated(node)
    assert parent.buffer is kept
    assert node.buffer is not kept
    assert galloc.buffer_sizes() == [16]


def test_a_view_of_memory_outside_is_not_taken_over() -> None:
    parent = leaf("w", 4)
    kept = hold(parent)
    node = ops.scale(ops.view(parent, (4,)), 2)
    galloc = allocated(node)
    assert node.buffer is not kept
    assert galloc.buffer_sizes() == [16]


def test_the_last_reader_takes_over() -> None:
    parent = ops.cont(leaf("x", 4))
    first = ops.scale(parent, 2)
    last = ops.sqr(parent)
    galloc = allocated(ops.add(first, last))
    assert not shared(first, parent)
    assert shared(last, parent)
    assert len(galloc.buffer_sizes()) == 1


@pytest.mark.parametrize("first", ["reader", "node"])
def test_views_of_a_source_must_have_been_read(first: str) -> None:
    parent = ops.cont(leaf("x", 4))
    view = ops.view(parent, (4,))
    reader, node = ops.cont(view), ops.scale(parent, 2)
    galloc = allocated(view, *([reader, node] if first == "reader" else [node, reader]))
    assert shared(node, parent) == (first == "reader")
    assert len(galloc.buffer_sizes()) == 1


# --- bytes of the source that the node does not need ---


def test_the_rest_of_a_larger_source_is_free_at_once() -> None:
    x = leaf("x", 4)
    parent = ops.cont(x)  # takes 16 + 48 bytes, [16, 80)
    node = ops.scale(parent, 2)
    after = ops.repeat(node, (8,))  # 32 bytes, while the node lives
    galloc = allocated(after, buft=PaddingBufferType({Op.CONT: 48}))
    assert (parent.offset, node.offset, after.offset) == (16, 16, 32)
    assert galloc.buffer_sizes() == [80]


def test_the_rest_begins_aligned() -> None:
    x = leaf("x", 5)  # 20 bytes, [0, 32)
    parent = ops.cont(x)  # 20 + 13 bytes, [32, 80)
    node = ops.scale(parent, 2)  # keeps [32, 64)
    after = Tensor(GGMLType.F32, (12,), op=Op.REPEAT, src=[node])  # too large for [0, 32)
    galloc = allocated(after, buft=PaddingBufferType({Op.CONT: 13}))
    assert (parent.offset, node.offset, after.offset) == (32, 32, 64)
    assert galloc.buffer_sizes() == [112]


def test_a_rest_smaller_than_the_alignment_is_not_freed() -> None:
    x = leaf("x", 5)  # [0, 32)
    parent = ops.cont(x)  # 20 + 9 bytes, [32, 64)
    node = ops.scale(parent, 2)
    after = Tensor(GGMLType.F32, (12,), op=Op.REPEAT, src=[node])
    galloc = allocated(after, buft=PaddingBufferType({Op.CONT: 9}))
    assert after.offset == 64
    assert galloc.buffer_sizes() == [112]


def test_the_node_later_frees_only_what_it_kept() -> None:
    """The rest is another tensor's by then."""
    y = leaf("y", 4)
    parent = ops.cont(leaf("x", 4))  # takes 16 + 16 bytes, after both leafs: [32, 64)
    node = ops.scale(parent, 2)  # keeps [32, 48)
    in_rest = ops.repeat(y, (8,))  # [48, 80); then both leafs are free
    small = ops.dup(node)  # [0, 16); then the node is free, so [16, 48) is
    large = ops.repeat(small, (12,))  # 48 bytes: do not fit there
    galloc = allocated(node, in_rest, large, ops.concat(large, in_rest, 0), buft=_PADDED_BY_16)
    assert [t.offset for t in (node, in_rest, small, large)] == [32, 48, 0, 80]
    assert galloc.buffer_sizes() == [208]


def test_a_source_that_took_less_than_the_node_needs_is_not_taken_over() -> None:
    """Otherwise the node would reach into its neighbor's memory."""
    x, y = leaf("x", 4), leaf("y", 4).set_input()
    node = ops.scale(x, 2)
    buft = PaddingBufferType({Op.SCALE: 16})  # here the node needs 32 bytes
    galloc = allocated(ops.add(node, y), buft=buft)
    assert node.offset + 32 <= y.offset or y.offset + 16 <= node.offset
    assert len(galloc.buffer_sizes()) == 1


_PADDED_BY_16 = PaddingBufferType({Op.CONT: 16})
