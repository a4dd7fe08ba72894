"""Buffer types, buffers and their operations on tensors, views, and buffers without bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from memory_types import BareBuffer, BareBufferType, PaddingBufferType, leaf

from lamella.alloc import (
    Buffer,
    BufferType,
    HostBufferType,
    Usage,
    alloc_tensors,
    buffer_of,
    tensor_alloc,
    tensor_copy,
    tensor_get,
    tensor_set,
    view_init,
)
from lamella.alloc.buffer import UNLIMITED, Data, EmptyBuffer
from lamella.base.errors import OutOfMemoryError, TensorAccessError
from lamella.graph import GGMLType, Op, Tensor, ops
from lamella.graph.tensor import view_tensor


class BrokenBufferType(BufferType):
    """A type whose allocations always fail."""

    def _alloc(self, size: int) -> Buffer:
        raise OutOfMemoryError(self.name, size)


def bare(size: int) -> BareBuffer:
    buffer = BareBufferType().alloc_buffer(size)
    assert isinstance(buffer, BareBuffer)
    return buffer


def placed(buffer: BareBuffer, offset: int = 8, n_bytes: int = 8) -> Tensor:
    """A tensor of bytes, with foreign memory before and after it."""
    tensor = leaf("t", n_bytes, type=GGMLType.I8)
    tensor_alloc(buffer, tensor, offset)
    return tensor


# --- buffer types ---


def test_a_buffer_type_describes_itself() -> None:
    buft = HostBufferType("MEM", alignment=32, max_size=1000, capacity=5000)
    assert (buft.name, buft.alignment, buft.max_size, buft.capacity) == ("MEM", 32, 1000, 5000)
    assert buft.is_host
    assert not BareBufferType().is_host
    assert "MEM" in repr(buft)


@pytest.mark.parametrize("make", [HostBufferType, BrokenBufferType])
def test_a_buffer_type_is_unlimited_by_default(make: Callable[[str], BufferType]) -> None:
    buft = make("MEM")
    assert (buft.max_size, buft.capacity, buft.used) == (UNLIMITED, UNLIMITED, 0)


@pytest.mark.parametrize("alignment", [0, 3, 48])
def test_an_alignment_is_a_power_of_two(alignment: int) -> None:
    with pytest.raises(AssertionError, match=f"alignment {alignment} is not a power of two"):
        HostBufferType(alignment=alignment)


def test_a_tensor_takes_its_bytes_unless_the_type_needs_more() -> None:
    tensor = ops.scale(leaf("x", 5, 3), 2)
    assert HostBufferType().get_alloc_size(tensor) == 60
    assert PaddingBufferType({Op.SCALE: 7}).get_alloc_size(tensor) == 67


def test_used_counts_buffers_until_they_are_freed() -> None:
    buft = HostBufferType()
    first, second = buft.alloc_buffer(100), buft.alloc_buffer(28)
    assert (first.size, first.buft, buft.used) == (100, buft, 128)
    first.free()
    assert buft.used == 28
    first.free()  # twice is fine, and counts once
    assert buft.used == 28
    second.free()
    assert buft.used == 0


def test_memory_is_released_once() -> None:
    buffer = bare(8)
    buffer.free()
    buffer.free()
    assert buffer.freed
    assert buffer.n_released == 1


def test_an_unreferenced_buffer_releases_its_memory() -> None:
    buft = HostBufferType()
    buffer = buft.alloc_buffer(100)
    del buffer
    assert buft.used == 0


def test_capacity_holds_for_all_buffers_together() -> None:
    buft = HostBufferType("MEM", capacity=100)
    kept = buft.alloc_buffer(60)
    with pytest.raises(
        OutOfMemoryError, match="MEM cannot allocate 41 bytes, 40 bytes are free"
    ) as e:
        buft.alloc_buffer(41)
    assert (e.value.where, e.value.wanted, e.value.free) == ("MEM", 41, 40)
    assert buft.used == 60  # a refusal costs nothing
    buft.alloc_buffer(40).free()
    kept.free()
    assert buft.alloc_buffer(100).size == 100


def test_a_failed_allocation_is_not_counted() -> None:
    buft = BrokenBufferType("MEM")
    with pytest.raises(OutOfMemoryError, match=r"MEM cannot allocate 8 bytes$"):
        buft.alloc_buffer(8)
    assert buft.used == 0


# --- buffers ---


def test_a_buffer_is_for_any_use_by_default() -> None:
    buffer = bare(8)
    assert buffer.usage is Usage.ANY
    buffer.usage = Usage.WEIGHTS
    assert "BARE 8 bytes weights" in repr(buffer)


@pytest.mark.parametrize(
    "data",
    [
        b"\1\2\3\4",
        bytearray(b"\1\2\3\4"),
        memoryview(b"\1\2\3\4"),
        np.array([1, 2, 3, 4], np.uint8),
        np.array([[0x0201, 0x0403]], "<u2"),
        np.array([0x0201, 0x0909, 0x0403, 0x0909], "<i2")[::2],  # with gaps
        np.array(0x04030201, "<i4"),  # without dimensions
    ],
    ids=["bytes", "bytearray", "memoryview", "array", "2d", "strided", "scalar"],
)
def test_data_of_any_kind_is_written_as_bytes(data: Data) -> None:
    buffer = bare(24)
    tensor_set(placed(buffer, n_bytes=4), data)
    assert bytes(buffer.bytes[8:13]) == b"\1\2\3\4\xaa"


def test_part_of_a_tensor_is_written_and_read() -> None:
    buffer = bare(24)
    tensor = placed(buffer)
    tensor_set(tensor, b"01234567")
    tensor_set(tensor, b"abc", offset=2)
    assert bytes(buffer.bytes) == b"\xaa" * 8 + b"01abc567" + b"\xaa" * 8
    assert tensor_get(tensor).tobytes() == b"01abc567"
    assert tensor_get(tensor, 4).tobytes() == b"c567"
    assert tensor_get(tensor, 1, 3).tobytes() == b"1ab"
    assert tensor_get(tensor, 8).tobytes() == b""  # the end is not outside


def test_reading_returns_a_copy() -> None:
    tensor = leaf("x", 4, type=GGMLType.I8)
    alloc_tensors([tensor], HostBufferType())
    tensor_set(tensor, b"abcd")
    got = tensor_get(tensor)
    got[:] = 0
    assert tensor_get(tensor).tobytes() == b"abcd"


def test_memset_stays_in_the_tensor() -> None:
    buffer = bare(24)
    tensor = placed(buffer)
    buffer.memset_tensor(tensor, 1)
    buffer.memset_tensor(tensor, 2, offset=6)
    buffer.memset_tensor(tensor, 3, offset=1, size=2)
    assert bytes(buffer.bytes) == b"\xaa" * 8 + b"\1\3\3\1\1\1\2\2" + b"\xaa" * 8


def test_clear_sets_every_byte() -> None:
    buffer = bare(24)
    placed(buffer)
    buffer.clear(7)
    assert bytes(buffer.bytes) == b"\7" * 24
    buffer.clear()
    assert bytes(buffer.bytes) == bytes(24)


@pytest.mark.parametrize(("offset", "size"), [(-1, 2), (0, 9), (8, 1), (9, 0), (0, -1)])
def test_bytes_outside_a_tensor_are_refused(offset: int, size: int) -> None:
    buffer = bare(24)
    tensor = placed(buffer)
    before = bytes(buffer.bytes)
    with pytest.raises(TensorAccessError, match="outside the tensor of 8 bytes"):
        tensor_get(tensor, offset, size)
    with pytest.raises(TensorAccessError, match="outside the tensor"):
        buffer.memset_tensor(tensor, 0, offset, size)
    if size >= 0:
        with pytest.raises(TensorAccessError, match=r"t\[8\] I8"):
            tensor_set(tensor, bytes(size), offset)
    assert bytes(buffer.bytes) == before


def test_a_tensor_of_another_buffer_is_refused() -> None:
    here, elsewhere = bare(24), bare(24)
    tensor = placed(elsewhere)
    for verb in (
        lambda: here.set_tensor(tensor, b"a"),
        lambda: here.get_tensor(tensor),
        lambda: here.memset_tensor(tensor, 0),
        lambda: here.copy_tensor(tensor, tensor),
    ):
        with pytest.raises(TensorAccessError, match="is not in this buffer of BARE"):
            verb()


def test_a_freed_buffer_is_refused() -> None:
    buffer = bare(24)
    tensor = placed(buffer)
    buffer.free()
    with pytest.raises(TensorAccessError, match="its buffer of BARE has been freed"):
        tensor_get(tensor)


def test_an_unallocated_tensor_is_refused() -> None:
    tensor, other = leaf("lost", 8, type=GGMLType.I8), placed(bare(24))
    for verb in (
        lambda: buffer_of(tensor),
        lambda: tensor_set(tensor, b"a"),
        lambda: tensor_get(tensor),
        lambda: tensor_copy(tensor, other),
        lambda: tensor_copy(other, tensor),
    ):
        with pytest.raises(TensorAccessError, match=r"lost\[8\] I8 is not allocated"):
            verb()


@pytest.mark.parametrize("source", ["bare", "host"])
@pytest.mark.parametrize("target", ["bare", "host"])
def test_tensors_are_copied_between_any_two_kinds(source: str, target: str) -> None:
    """The copy goes through the host if neither side knows the other's memory."""
    kinds: dict[str, type[BufferType]] = {"bare": BareBufferType, "host": HostBufferType}
    made = []
    for kind in (source, target):
        buft = kinds[kind](kind)
        pair = [leaf(f"{kind}{i}", 4, type=GGMLType.I8) for i in range(3)]
        made.append((alloc_tensors(pair, buft), pair))
        made[-1][0][0].clear(9)
    src, dst = made[0][1][1], made[1][1][1]
    tensor_set(src, b"abcd")
    tensor_copy(src, dst)
    got = [tensor_get(t).tobytes() for _, pair in made for t in pair]
    assert got == [b"\t" * 4, b"abcd", b"\t" * 4] * 2  # src and neighbors are unchanged


def test_a_buffer_that_cannot_copy_says_so() -> None:
    here, there = bare(24), bare(24)
    src, dst = placed(there), placed(here)
    assert not here.copy_tensor(src, dst)


def test_a_tensor_is_not_copied_onto_itself() -> None:
    buffer = bare(24)
    tensor = placed(buffer)
    tensor_copy(tensor, tensor)
    assert buffer.n_written == 0


def test_only_tensors_of_the_same_size_are_copied() -> None:
    buffer = bare(24)
    with pytest.raises(AssertionError, match="differ in size"):
        tensor_copy(placed(buffer, 0, 8), placed(buffer, 8, 4))


# --- places ---


def test_a_tensor_gets_its_place_and_is_initialized() -> None:
    buffer = bare(24)
    tensor = placed(buffer, 16)
    assert (tensor.buffer, tensor.offset) == (buffer, 16)
    assert buffer.initialized == [tensor]
    buffer.reset()  # does nothing in a buffer that attaches nothing to tensors
    assert tensor.buffer is buffer


@pytest.mark.parametrize(
    ("offset", "n_bytes", "complaint"),
    [
        (4, 8, "offset 4 is not aligned"),
        (16, 9, r"16 \+ 9 does not fit"),
        (24, 1, r"24 \+ 1 does not fit"),
    ],
)
def test_places_outside_or_between_are_refused(offset: int, n_bytes: int, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        placed(bare(24), offset, n_bytes)


def test_padding_of_a_type_must_fit_too() -> None:
    buffer = PaddingBufferType({Op.NONE: 1}).alloc_buffer(16)
    with pytest.raises(AssertionError, match=r"0 \+ 17 does not fit"):
        tensor_alloc(buffer, leaf("x", 4), 0)


def test_a_tensor_gets_a_place_once() -> None:
    buffer = bare(24)
    tensor = placed(buffer)
    with pytest.raises(AssertionError, match="is placed already"):
        tensor_alloc(buffer, tensor, 0)
    with pytest.raises(AssertionError, match="is placed already"):
        tensor_alloc(buffer, view_tensor(tensor), 0)


def test_a_view_is_placed_in_its_source() -> None:
    buffer = bare(48)
    source = leaf("x", 4, 2)
    tensor_alloc(buffer, source, 8)
    row = ops.view(source, (4,), offset=16)
    end = ops.view(row, (2,), offset=8)  # a view of a view
    for view in (row, end):
        view_init(view)
    assert (row.buffer, row.offset) == (buffer, 24)
    assert (end.buffer, end.offset) == (buffer, 32)
    assert buffer.initialized == [source, row, end]
    tensor_set(end, np.array([5, 6], np.float32))
    assert tensor_get(source, 24).view(np.float32).tolist() == [5, 6]
    with pytest.raises(TensorAccessError, match="outside the tensor of 8 bytes"):
        tensor_get(end, 0, 9)


def test_a_view_needs_a_source_with_a_place() -> None:
    with pytest.raises(AssertionError, match="its source is not placed"):
        view_init(ops.view(leaf("x", 4), (2,)))
    with pytest.raises(AssertionError, match="its source is not placed"):
        view_init(leaf("x", 4))


# --- no bytes ---


@pytest.mark.parametrize("buft", [HostBufferType(capacity=0), BareBufferType(capacity=0)])
def test_a_buffer_of_no_bytes_takes_no_memory(buft: BufferType) -> None:
    buffer = buft.alloc_buffer(0)
    assert isinstance(buffer, EmptyBuffer)
    assert (buffer.size, buffer.buft, buffer.usage) == (0, buft, Usage.ANY)
    buffer.clear(1)
    buffer.reset()
    buffer.free()
    assert buft.used == 0


def test_tensors_without_elements_are_tensors_too() -> None:
    buft = BareBufferType()
    empty, other = leaf("e", 0), leaf("o", 3, 0)
    (buffer,) = alloc_tensors([empty, other], buft, Usage.WEIGHTS)
    assert not buft.buffers  # no memory was requested
    assert (empty.buffer, other.buffer, buffer.usage) == (buffer, buffer, Usage.WEIGHTS)
    tensor_set(empty, b"")
    buffer.memset_tensor(empty, 1)
    assert tensor_get(empty).size == 0
    tensor_copy(empty, other)
    with pytest.raises(TensorAccessError, match="outside the tensor of 0 bytes"):
        tensor_set(empty, b"a")
