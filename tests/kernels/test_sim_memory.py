"""Memory of simulated devices: the host can only copy to and from it."""

from __future__ import annotations

import numpy as np
import pytest

from lamella.alloc import (
    Buffer,
    BufferType,
    HostBufferType,
    Usage,
    alloc_tensors,
    tensor_copy,
    tensor_get,
    tensor_set,
)
from lamella.alloc.buffer import UNLIMITED
from lamella.base.errors import OutOfMemoryError, TensorAccessError
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.sim import SimBuffer, SimBufferType, SimDevice
from lamella.kernels.sim.memory import device_memory
from lamella.sched import DeviceType
from lamella.sched.null import NullBufferType


def placed(buft: BufferType, *ne: int, type: GGMLType = GGMLType.F32) -> tuple[Tensor, Buffer]:
    tensor = Tensor(type, ne, name="x")
    (buffer,) = alloc_tensors([tensor], buft)
    return tensor, buffer


def test_the_host_cannot_access_it_in_place() -> None:
    tensor, buffer = placed(SimBufferType("VRAM"), 4)
    assert isinstance(buffer, SimBuffer)
    assert not buffer.buft.is_host
    with pytest.raises(TensorAccessError, match="the host cannot read VRAM in place: copy it"):
        _ = buffer.memory
    with pytest.raises(TensorAccessError, match=r"x\[4\] F32 is in VRAM"):
        buffer.array(tensor)


def test_the_host_can_copy_to_and_from_it() -> None:
    tensor, buffer = placed(SimBufferType("VRAM"), 4)
    tensor_set(tensor, np.arange(4, dtype=np.float32))
    assert tensor_get(tensor).view(np.float32).tolist() == [0, 1, 2, 3]
    assert tensor_get(tensor, 8, 4).view(np.float32).tolist() == [2]
    buffer.memset_tensor(tensor, 0, offset=8)
    assert tensor_get(tensor).view(np.float32).tolist() == [0, 1, 0, 0]
    buffer.clear(1)
    assert set(tensor_get(tensor)) == {1}


def test_reading_returns_a_copy() -> None:
    tensor, buffer = placed(SimBufferType("VRAM"), 4)
    buffer.clear(1)
    got = tensor_get(tensor)
    got[:] = 9
    assert set(tensor_get(tensor)) == {1}


def test_bytes_outside_a_tensor_are_refused() -> None:
    tensor, buffer = placed(SimBufferType("VRAM"), 4)
    assert buffer.size > tensor.nbytes  # padded for the alignment
    with pytest.raises(TensorAccessError, match="outside the tensor of 16 bytes"):
        tensor_get(tensor, 0, 17)
    with pytest.raises(TensorAccessError, match="outside the tensor of 16 bytes"):
        tensor_set(tensor, bytes(8), offset=12)


@pytest.mark.parametrize("type", [GGMLType.F32, GGMLType.F16])
def test_new_memory_is_poisoned(type: GGMLType) -> None:
    """Unwritten memory reads as NaN, or as index -1."""
    tensor, buffer = placed(SimBufferType("VRAM"), 16, type=type)
    dtype = np.float32 if type is GGMLType.F32 else np.float16
    assert np.isnan(tensor_get(tensor).view(dtype)).all()
    ids, other = placed(buffer.buft, 4, type=GGMLType.I32)
    assert tensor_get(ids).view(np.int32).tolist() == [-1] * 4
    assert other is not buffer


@pytest.mark.parametrize("alignment", [128, 512])
def test_tensors_are_aligned(alignment: int) -> None:
    tensors = [Tensor(GGMLType.F32, (3,), name=f"x{i}") for i in range(3)]
    buffers = alloc_tensors(tensors, SimBufferType("VRAM", alignment=alignment))
    assert [t.offset for t in tensors] == [0, alignment, 2 * alignment]
    memory = device_memory(buffers[0])
    assert memory is not None
    assert memory.ctypes.data % alignment == 0


def test_memory_runs_out_and_is_returned() -> None:
    device = SimDevice("SIM0", memory=1000)
    buft = device.buffer_type
    first = buft.alloc_buffer(600)
    assert device.memory() == (400, 1000)
    with pytest.raises(
        OutOfMemoryError, match="SIM0 cannot allocate 512 bytes, 400 bytes are free"
    ):
        placed(buft, 128)
    assert device.memory() == (400, 1000)
    first.free()
    assert device.memory() == (1000, 1000)
    assert placed(buft, 128)[1].size == 512


def test_memory_is_unlimited_by_default() -> None:
    assert SimDevice("SIM0").memory() == (UNLIMITED, UNLIMITED)
    assert SimDevice("CPU", DeviceType.CPU, memory=5).memory() == (5, 5)


def test_more_than_the_machine_has_is_out_of_memory() -> None:
    device = SimDevice("SIM0")
    with pytest.raises(OutOfMemoryError, match=f"SIM0 cannot allocate {2**50} bytes"):
        device.buffer_type.alloc_buffer(2**50)
    assert device.memory() == (UNLIMITED, UNLIMITED)


def test_a_list_over_max_size_is_split() -> None:
    tensors = [Tensor(GGMLType.F32, (32,), name=f"x{i}") for i in range(3)]
    buffers = alloc_tensors(tensors, SimBufferType("VRAM", max_size=256), Usage.WEIGHTS)
    assert [b.size for b in buffers] == [256, 128]


# --- copies ---


KINDS = {"sim": SimBufferType, "host": HostBufferType, "null": NullBufferType}


@pytest.mark.parametrize("source", ["sim", "host"])
@pytest.mark.parametrize("target", ["sim", "host"])
def test_copies_between_any_two_kinds(source: str, target: str) -> None:
    (src, kept), (dst, there) = placed(KINDS[source]("S"), 4), placed(KINDS[target]("T"), 4)
    there.clear(9)
    tensor_set(src, np.arange(4, dtype=np.float32))
    tensor_copy(src, dst)
    assert tensor_get(dst).view(np.float32).tolist() == [0, 1, 2, 3]
    assert tensor_get(src).view(np.float32).tolist() == [0, 1, 2, 3]
    assert kept.buft is not there.buft


def test_part_of_a_buffer_is_copied() -> None:
    """A view of the source into a view of the target: other bytes do not change."""
    (src, _kept), (dst, there) = placed(SimBufferType("S"), 8), placed(SimBufferType("T"), 8)
    there.clear(0)
    tensor_set(src, np.arange(8, dtype=np.float32))
    views = ops.view(src, (2,), offset=20), ops.view(dst, (2,), offset=4)
    alloc_tensors(views, src.buffer.buft)
    tensor_copy(*views)
    assert tensor_get(dst).view(np.float32).tolist() == [0, 5, 6, 0, 0, 0, 0, 0]


def test_a_copy_from_inaccessible_memory_goes_through_the_host() -> None:
    (src, kept), (dst, there) = placed(NullBufferType("NULL"), 4), placed(SimBufferType("T"), 4)
    assert not there.copy_tensor(src, dst)
    tensor_copy(src, dst)
    assert set(tensor_get(dst)) == {0}  # null memory reads as 0
    assert kept.size == 64


@pytest.mark.parametrize("source", ["sim", "host"])
@pytest.mark.parametrize("target", ["sim", "host"])
def test_a_copy_from_a_freed_buffer_is_refused(source: str, target: str) -> None:
    (src, kept), (dst, there) = placed(KINDS[source]("S"), 4), placed(KINDS[target]("T"), 4)
    kept.free()
    with pytest.raises(TensorAccessError, match="its buffer of S has been freed"):
        tensor_copy(src, dst)
    assert not there.freed


def test_a_copy_into_a_freed_buffer_is_refused() -> None:
    (src, kept), (dst, there) = placed(SimBufferType("S"), 4), placed(SimBufferType("T"), 4)
    there.free()
    with pytest.raises(TensorAccessError, match="its buffer of T has been freed"):
        tensor_copy(src, dst)
    assert not kept.freed


def test_device_memory_is_writable_in_place() -> None:
    for buft in (SimBufferType("S"), HostBufferType("H")):
        tensor, buffer = placed(buft, 4)
        memory = device_memory(buffer)
        assert memory is not None
        memory[:16] = 5
        assert set(tensor_get(tensor)) == {5}
        empty = device_memory(buft.alloc_buffer(0))
        assert empty is not None
        assert empty.size == 0
    assert device_memory(placed(NullBufferType("NULL"), 4)[1]) is None
