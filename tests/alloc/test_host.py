"""Host memory: aligned, viewed by NumPy in place; out of memory is an error value."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from memory_types import BareBufferType, leaf

from lamella.alloc import (
    HostBuffer,
    HostBufferType,
    alloc_tensors,
    array_of,
    tensor_alloc,
    tensor_get,
    tensor_set,
    view_init,
)
from lamella.alloc.host import HUGE_BYTES, aligned_zeros, untouched_bytes
from lamella.base.errors import OutOfMemoryError, TensorAccessError
from lamella.graph import GGMLType, Tensor, ops


def host(buft: HostBufferType, size: int) -> HostBuffer:
    buffer = buft.alloc_buffer(size)
    assert isinstance(buffer, HostBuffer)
    return buffer


def array(tensor: Tensor) -> npt.NDArray[np.generic]:
    assert isinstance(tensor.buffer, HostBuffer)
    return tensor.buffer.array(tensor)


@pytest.mark.parametrize("alignment", [1, 32, 64, 256, 4096])
def test_buffers_begin_aligned(alignment: int) -> None:
    buft = HostBufferType(alignment=alignment)
    sizes = (1, 63, 64, 1000, 5000)
    kept = [host(buft, size) for size in sizes]  # side by side, so that their addresses differ
    assert [b.memory.ctypes.data % alignment for b in kept] == [0] * 5
    assert tuple(b.size for b in kept) == tuple(b.memory.size for b in kept) == sizes


def test_tensors_begin_aligned() -> None:
    buft = HostBufferType(alignment=256)
    tensors = [leaf(f"x{i}", 3) for i in range(4)]
    buffers = alloc_tensors(tensors, buft)
    assert [array(t).ctypes.data % 256 for t in tensors] == [0] * 4
    assert [t.offset for t in tensors] == [0, 256, 512, 768]
    assert buffers[0].size == 1024


def test_numpy_views_the_memory_itself() -> None:
    x = leaf("x", 3, 2)
    buffer = host(HostBufferType(), 128)
    tensor_alloc(buffer, x, 64)
    tensor_set(x, np.arange(6, dtype=np.float32))
    seen = array(x)
    assert np.shares_memory(seen, buffer.memory)
    assert seen.shape == (1, 1, 2, 3)
    assert seen.dtype == np.float32
    assert seen[0, 0].tolist() == [[0, 1, 2], [3, 4, 5]]
    seen[0, 0, 1, 0] = 9
    assert tensor_get(x).view(np.float32).tolist() == [0, 1, 2, 9, 4, 5]


def test_views_are_seen_with_their_strides() -> None:
    x = leaf("x", 4, 3)
    buffers = alloc_tensors([x], HostBufferType())
    tensor_set(x, np.arange(12, dtype=np.float32))
    column = ops.view(x, (2, 3), nb=(4, 16), offset=4)
    turned = ops.transpose(x)
    for view in (column, turned):
        view_init(view)
        assert np.shares_memory(array(view), array(x))
    assert array(column)[0, 0].tolist() == [[1, 2], [5, 6], [9, 10]]
    assert array(turned)[0, 0].tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert len(buffers) == 1


@pytest.mark.parametrize(
    ("type", "dtype"),
    [
        (GGMLType.F32, np.float32),
        (GGMLType.F16, np.float16),
        (GGMLType.BF16, np.uint16),  # its bits
        (GGMLType.F64, np.float64),
        (GGMLType.I8, np.int8),
        (GGMLType.I16, np.int16),
        (GGMLType.I32, np.int32),
        (GGMLType.I64, np.int64),
    ],
)
def test_elements_have_their_type(type: GGMLType, dtype: npt.DTypeLike) -> None:
    x = leaf("x", 5, type=type)
    kept = alloc_tensors([x], HostBufferType())
    assert array(x).dtype == dtype
    assert array(x).nbytes == x.nbytes
    assert len(kept) == 1


def test_quantized_tensors_are_rows_of_packed_blocks() -> None:
    x = leaf("x", 64, 3, 2, type=GGMLType.Q4_0)  # 2 blocks of 18 bytes a row
    kept = alloc_tensors([x], HostBufferType())
    tensor_set(x, np.arange(x.nbytes).astype(np.uint8))
    assert array(x).shape == (1, 2, 3, 36)
    assert array(x).dtype == np.uint8
    assert array(x)[0, 1, 2, 0] == 5 * 36
    assert len(kept) == 1


def test_blocks_with_gaps_have_no_array() -> None:
    gappy = Tensor(GGMLType.Q4_0, (64, 3), nb=(36, 72, 216, 216))  # every other block
    with pytest.raises(AssertionError, match="a row of blocks has gaps"):
        array_of(gappy, np.zeros(216, np.uint8))


@pytest.mark.parametrize("size", [0, 4, 7])
def test_arrays_do_not_leave_their_memory(size: int) -> None:
    """NumPy itself does not check an array's end if the buffer is empty."""
    with pytest.raises(TensorAccessError, match=rf"bytes 0\.\.8 are outside its .* {size} bytes"):
        array_of(leaf("x", 2), np.zeros(size, np.uint8))


def test_arrays_from_the_middle_do_not_leave_their_memory() -> None:
    x = leaf("x", 2)
    x.offset = 4
    with pytest.raises(TensorAccessError, match=r"bytes 4\.\.12 are outside its memory of 8 bytes"):
        array_of(x, np.zeros(8, np.uint8))


def test_an_empty_tensor_is_an_empty_array() -> None:
    x, e = leaf("x", 4), leaf("e", 3, 0, 2)
    kept = alloc_tensors([x, e], HostBufferType())
    assert array(e).shape == (1, 2, 0, 3)
    assert array(e).dtype == np.float32
    assert len(kept) == 1


def test_a_tensor_of_another_buffer_has_no_array() -> None:
    x, y = leaf("x", 4), leaf("y", 4)
    kept = [*alloc_tensors([x], HostBufferType()), *alloc_tensors([y], HostBufferType())]
    assert isinstance(kept[0], HostBuffer)
    with pytest.raises(TensorAccessError, match="is not in this buffer"):
        kept[0].array(y)
    kept[0].free()
    with pytest.raises(TensorAccessError, match="has been freed"):
        kept[0].array(x)


def test_memory_is_released_when_a_buffer_is_freed() -> None:
    buffer = host(HostBufferType(), 1000)
    buffer.free()
    assert buffer.memory.size == 0


def flags_of(address: int) -> set[str] | None:
    """The kernel's flags of the mapping that contains an address; None if there is none."""
    found, flags = False, None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(maxsplit=1)[0]
        if "-" in head:
            begin, end = (int(part, 16) for part in head.split("-"))
            found = begin <= address < end
        elif found and head == "VmFlags:":
            flags = set(line.split()[1:])
    return flags


@pytest.mark.parametrize("alignment", [64, 1 << 16])
@pytest.mark.parametrize("size", [HUGE_BYTES, 3 * HUGE_BYTES + 1])
def test_large_memory_is_aligned_and_usable(size: int, alignment: int) -> None:
    memory = aligned_zeros(size, alignment, "test")
    assert memory.size == memory.nbytes == size
    assert memory.ctypes.data % alignment == 0
    memory[:] = 7
    assert memory[[0, -1]].tolist() == [7, 7]
    view = memory[10:20]
    del memory
    assert view.tolist() == [7] * 10  # a view keeps it


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages")
def test_large_memory_requests_huge_pages_and_is_returned() -> None:
    size = 16 * HUGE_BYTES  # more than malloc would keep
    small, memory = (aligned_zeros(n, 64, "test") for n in (HUGE_BYTES - 1, size))
    memory[:] = 1
    middle = memory.ctypes.data + size // 2
    flags = flags_of(middle)
    assert flags is not None
    if Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert "hg" in flags
    assert "sh" not in flags
    del memory
    assert flags_of(middle) is None
    assert small.size == HUGE_BYTES - 1


@pytest.mark.parametrize("size", [100, HUGE_BYTES - 1, HUGE_BYTES])
def test_new_memory_holds_zeros(size: int) -> None:
    for _ in range(3):
        memory = aligned_zeros(size, 64, "test")
        assert not memory.any()
        memory[:] = 1
        del memory  # the next one may be at the same address


def test_a_buffer_over_existing_memory() -> None:
    memory = np.zeros(64, np.uint8)
    buffer = HostBuffer(HostBufferType(), memory)
    x = leaf("x", 4)
    tensor_alloc(buffer, x, 0)
    tensor_set(x, np.full(4, 2, np.float32))
    assert memory[:16].view(np.float32).tolist() == [2] * 4
    assert buffer.size == 64


def test_bytes_beside_a_tensor_stay() -> None:
    x = leaf("x", 4)
    buffer = host(HostBufferType(alignment=16), 48)
    tensor_alloc(buffer, x, 16)
    buffer.clear(1)
    tensor_set(x, np.zeros(2, np.float32), offset=4)
    buffer.memset_tensor(x, 5, offset=8, size=2)
    assert buffer.memory.tolist() == [1] * 20 + [0] * 4 + [5] * 2 + [0] * 2 + [1] * 20


def test_copies_between_host_buffers_are_direct() -> None:
    x, y, z = (leaf(name, 4) for name in "xyz")
    kept = [alloc_tensors([t], HostBufferType())[0] for t in (x, y)]
    kept += alloc_tensors([z], BareBufferType())
    tensor_set(x, np.arange(4, dtype=np.float32))
    assert kept[1].copy_tensor(x, y)
    assert tensor_get(y).view(np.float32).tolist() == [0, 1, 2, 3]
    assert not kept[1].copy_tensor(z, y)  # memory it does not know


def test_a_copy_from_a_freed_buffer_is_refused() -> None:
    x, y = leaf("x", 4), leaf("y", 4)
    kept = [alloc_tensors([t], HostBufferType())[0] for t in (x, y)]
    kept[0].free()
    with pytest.raises(TensorAccessError, match="has been freed"):
        kept[1].copy_tensor(x, y)


@pytest.mark.parametrize("size", [2**50, 2**62, 2**63 - 1, 2**64])
def test_absurd_sizes_are_an_error_value(size: int) -> None:
    buft = HostBufferType("RAM")
    with pytest.raises(
        OutOfMemoryError, match=f"out of memory: RAM cannot allocate {size} bytes"
    ) as e:
        buft.alloc_buffer(size)
    assert (e.value.where, e.value.wanted) == ("RAM", size)
    assert buft.used == 0
    assert buft.alloc_buffer(100).size == 100  # the type still works


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="other systems do not report it")
def test_memory_is_untouched_until_it_is_written() -> None:
    before, size = untouched_bytes(), 8 * HUGE_BYTES
    buffer = host(HostBufferType(), size)
    for n in (0, size // 2, size):
        buffer.memory[:n] = 1
        # the system provides whole huge pages
        assert untouched_bytes() - before == pytest.approx(size - n, abs=HUGE_BYTES)
    buffer.free()
    host(HostBufferType(), size).free()
    assert untouched_bytes() == before
