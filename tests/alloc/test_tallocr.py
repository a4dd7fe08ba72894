"""The linear allocator, and placing all tensors of a list in a buffer type."""

from __future__ import annotations

import pytest
from memory_types import BareBufferType, PaddingBufferType, leaf

from lamella.alloc import Buffer, HostBufferType, TensorAllocator, Usage, alloc_tensors
from lamella.alloc.tallocr import align
from lamella.base.errors import OutOfMemoryError
from lamella.graph import GGMLType, Op, Tensor, ops


def raw(name: str, n_bytes: int) -> Tensor:
    return leaf(name, n_bytes, type=GGMLType.I8)


def places(tensors: list[Tensor], buffers: list[Buffer]) -> list[tuple[int, int]]:
    """(index of the buffer, offset) of each tensor."""
    return [(buffers.index(t.buffer), t.offset) for t in tensors]


@pytest.mark.parametrize(
    ("size", "alignment", "aligned"),
    [(0, 64, 0), (1, 64, 64), (64, 64, 64), (65, 64, 128), (7, 1, 7), (9, 8, 16)],
)
def test_align(size: int, alignment: int, aligned: int) -> None:
    assert align(size, alignment) == aligned


# --- one buffer ---


def test_tensors_are_placed_one_after_the_other() -> None:
    buffer = HostBufferType(alignment=16).alloc_buffer(64)
    allocator = TensorAllocator(buffer)
    tensors = [raw("a", 1), raw("b", 16), raw("c", 0), raw("d", 17)]
    for t in tensors:
        allocator.alloc(t)
    assert [t.offset for t in tensors] == [0, 16, 32, 32]
    assert all(t.buffer is buffer for t in tensors)
    assert allocator.offset == 64


def test_padding_of_a_type_is_left_free() -> None:
    buffer = PaddingBufferType({Op.SCALE: 20}).alloc_buffer(64)
    allocator = TensorAllocator(buffer)
    x, y = ops.scale(leaf("x", 4), 1), raw("y", 8)
    allocator.alloc(x)
    allocator.alloc(y)
    assert (x.offset, y.offset) == (0, 48)


def test_a_full_buffer_is_an_error_value() -> None:
    buffer = HostBufferType("MEM", alignment=16).alloc_buffer(48)
    allocator = TensorAllocator(buffer)
    allocator.alloc(raw("a", 20))
    late = raw("late", 17)
    with pytest.raises(OutOfMemoryError, match=r"MEM for late\[17\] I8") as e:
        allocator.alloc(late)
    assert (e.value.wanted, e.value.free) == (32, 16)
    assert (late.buffer, late.offset) == (None, 0)
    small = raw("small", 16)
    allocator.alloc(small)  # what fits still fits
    assert small.offset == 32


# --- lists ---


def test_a_list_is_placed_in_one_buffer() -> None:
    buft = HostBufferType(alignment=16)
    tensors = [raw("a", 10), raw("b", 40), raw("c", 16)]
    buffers = alloc_tensors(iter(tensors), buft, Usage.WEIGHTS)
    assert places(tensors, buffers) == [(0, 0), (0, 16), (0, 64)]
    assert [b.size for b in buffers] == [80]  # not a byte more than needed
    assert buffers[0].usage is Usage.WEIGHTS
    assert buft.used == 80


def test_a_list_is_for_any_use_by_default() -> None:
    (buffer,) = alloc_tensors([raw("a", 1)], HostBufferType())
    assert buffer.usage is Usage.ANY


def test_tensors_with_a_place_keep_it() -> None:
    buft = HostBufferType(alignment=16)
    old, new = raw("old", 16), raw("new", 16)
    first = alloc_tensors([old], buft)
    second = alloc_tensors([old, new], buft)
    assert old.buffer is first[0]
    assert places([new], second) == [(0, 0)]
    assert second[0].size == 16


def test_an_empty_list_makes_no_buffer() -> None:
    x = raw("x", 16)
    buft = HostBufferType()
    kept = alloc_tensors([x], buft)
    assert alloc_tensors([], buft) == []
    assert alloc_tensors([x], buft) == []
    assert len(kept) == 1


def test_a_list_over_max_size_is_split() -> None:
    """In order: a tensor that does not fit opens the next buffer, even if a later one would fit."""
    buft = HostBufferType(alignment=16, max_size=64)
    tensors = [raw("a", 32), raw("b", 16), raw("c", 20), raw("d", 32), raw("e", 1)]
    buffers = alloc_tensors(tensors, buft, Usage.WEIGHTS)
    assert places(tensors, buffers) == [(0, 0), (0, 32), (1, 0), (1, 32), (2, 0)]
    assert [b.size for b in buffers] == [48, 64, 16]
    assert {b.usage for b in buffers} == {Usage.WEIGHTS}


def test_a_tensor_larger_than_max_size_gets_its_own_buffer() -> None:
    buft = HostBufferType(alignment=16, max_size=64)
    tensors = [raw("a", 16), raw("big", 100), raw("b", 16), raw("c", 48)]
    buffers = alloc_tensors(tensors, buft)
    assert places(tensors, buffers) == [(0, 0), (1, 0), (2, 0), (2, 16)]
    assert [b.size for b in buffers] == [16, 112, 64]


def test_padding_of_a_type_counts_towards_max_size() -> None:
    buft = PaddingBufferType({Op.SCALE: 16}, max_size=64)
    tensors = [ops.scale(leaf(f"x{i}", 4), 1) for i in range(3)]
    buffers = alloc_tensors(tensors, buft)
    assert places(tensors, buffers) == [(0, 0), (0, 32), (1, 0)]


def test_views_may_precede_their_sources() -> None:
    buft = HostBufferType(alignment=16)
    x = leaf("x", 4, 2)
    view = ops.view(x, (4,), offset=16)
    buffers = alloc_tensors([view, ops.view(view, (2,)), raw("y", 16), x], buft)
    assert places([view, x], buffers) == [(0, 32), (0, 16)]
    assert buffers[0].size == 48  # views take no memory


def test_views_of_tensors_placed_before() -> None:
    buft = HostBufferType()
    x = leaf("x", 4, 2)
    (buffer,) = alloc_tensors([x], buft)
    view = ops.view(x, (4,), offset=16)
    assert alloc_tensors([view], buft) == []
    assert (view.buffer, view.offset) == (buffer, 16)


def test_every_tensor_is_initialized_once() -> None:
    buft = BareBufferType()
    x = leaf("x", 4)
    view = ops.view(x, (2,))
    alloc_tensors([view, x], buft)
    assert buft.buffers[0].initialized == [x, view]


def test_out_of_memory_halfway_leaves_nothing_behind() -> None:
    buft = HostBufferType("MEM", alignment=16, max_size=32, capacity=80)
    tensors = [raw("a", 32), raw("b", 32), raw("c", 32)]
    view = ops.view(tensors[0], (8,))
    with pytest.raises(OutOfMemoryError, match="MEM cannot allocate 32 bytes") as e:
        alloc_tensors([*tensors, view], buft)
    assert e.value.free == 16
    assert buft.used == 0  # although the error still references the first two buffers
    assert [(t.buffer, t.offset) for t in (*tensors, view)] == [(None, 0)] * 4
    buffers = alloc_tensors([*tensors[:2], view], buft)  # what fits still fits
    assert places(tensors[:2], buffers) == [(0, 0), (1, 0)]
    assert view.buffer is buffers[0]


def test_out_of_memory_keeps_tensors_placed_before() -> None:
    buft = HostBufferType(alignment=16, capacity=40)
    old, new = raw("old", 16), raw("new", 32)
    (buffer,) = alloc_tensors([old], buft)
    with pytest.raises(OutOfMemoryError):
        alloc_tensors([old, new], buft)
    assert old.buffer is buffer
    assert not buffer.freed
    assert new.buffer is None
    assert buft.used == 16
