"""Memory of a CUDA device, and pinned memory of the host, from which copies are fast.

The host cannot access a device's memory in place; it can only copy to and from it.
Tested by tests/kernels/test_cuda_device.py.
"""

from __future__ import annotations

import ctypes

import numpy as np

from ...alloc.buffer import BufferType, Bytes, Data, buffer_of
from ...alloc.dlpack import CUDA
from ...alloc.host import HostBuffer
from ...base.errors import OutOfMemoryError
from ...graph.tensor import Tensor
from ..device_buffer import DeviceBuffer
from ..host import free_memory
from .driver import Address, Gpu

ALIGNMENT = 256  # the alignment of CUDA's allocations; kernels need 16 bytes
PIECE = 16  # kernels read whole aligned pieces, also if a tensor ends within one


class CudaBufferType(BufferType):
    """The memory of one device. Its name is the device's."""

    def __init__(self, name: str, gpu: Gpu) -> None:
        super().__init__(name, alignment=ALIGNMENT)
        self.gpu = gpu

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return CUDA, self.gpu.info.index

    def _alloc(self, size: int) -> CudaBuffer:
        try:
            return CudaBuffer(self, size, self.gpu.alloc(-(-size // PIECE) * PIECE))
        except OutOfMemoryError as e:
            raise OutOfMemoryError(self.name, e.wanted, e.free) from None


class CudaBuffer(DeviceBuffer):
    """One allocation of a device, at `address`.

    `copies` has copies of tensors in pinned memory of the host, which are as new as the tensors:
    see `results.py`.
    """

    buft: CudaBufferType

    def __init__(self, buft: CudaBufferType, size: int, address: Address) -> None:
        super().__init__(buft, size)
        self._address = address
        self.copies: dict[Tensor, Bytes] = {}

    @property
    def address(self) -> Address:
        return self._address

    @property
    def gpu(self) -> Gpu:
        return self.buft.gpu

    def in_place(self, tensor: Tensor) -> Bytes | None:
        return self.copies.get(tensor)

    def get_tensor(self, tensor: Tensor, offset: int = 0, size: int | None = None) -> Bytes:
        if tensor not in self.copies:
            return super().get_tensor(tensor, offset, size)
        out = np.empty(tensor.nbytes - offset if size is None else size, np.uint8)
        self.read_tensor(tensor, out, offset)
        return out

    def read_tensor(self, tensor: Tensor, out: Bytes, offset: int = 0) -> None:
        copy = self.copies.get(tensor)
        if copy is None:
            super().read_tensor(tensor, out, offset)
        else:
            self._locate(tensor, offset, out.size)
            out[:] = copy[offset : offset + out.size]

    def set_tensor(self, tensor: Tensor, data: Data, offset: int = 0) -> None:
        self.copies.pop(tensor, None)
        super().set_tensor(tensor, data, offset)

    def memset_tensor(
        self, tensor: Tensor, value: int, offset: int = 0, size: int | None = None
    ) -> None:
        self.copies.pop(tensor, None)
        super().memset_tensor(tensor, value, offset, size)

    def _write(self, offset: int, data: Bytes) -> None:
        if data.size:
            self.gpu.write(self.address + offset, data)

    def _read(self, offset: int, size: int) -> Bytes:
        out = np.empty(size, np.uint8)
        self._read_into(offset, out)
        return out

    def _read_into(self, offset: int, out: Bytes) -> None:
        if out.size:
            self.gpu.read(out, self.address + offset)

    def _fill(self, offset: int, size: int, value: int) -> None:
        if size:
            self.gpu.fill(self.address + offset, value, size)

    def _copy(self, src: Tensor, dst: Tensor) -> bool:
        source = buffer_of(src)
        if not isinstance(source, HostBuffer):
            return False
        self.copies.pop(dst, None)
        self._write(dst.offset, source.memory[src.offset : src.offset + src.nbytes])
        return True

    def _release(self) -> None:
        self.gpu.free(self._address)


class PinnedBufferType(BufferType):
    """Pinned memory of the host: the system never moves it, so devices copy it at full speed."""

    def __init__(self, name: str, gpu: Gpu) -> None:
        super().__init__(name, alignment=ALIGNMENT, is_host=True)
        self._gpu = gpu

    def _alloc(self, size: int) -> PinnedBuffer:
        free = free_memory()
        if size > free:  # otherwise the system would kill the process
            raise OutOfMemoryError(self.name, size, free)
        try:
            return PinnedBuffer(self, size, self._gpu)
        except OutOfMemoryError as e:
            raise OutOfMemoryError(self.name, e.wanted, e.free) from None


class PinnedBuffer(HostBuffer):
    """One allocation of pinned memory."""

    def __init__(self, buft: BufferType, size: int, gpu: Gpu) -> None:
        self._gpu = gpu
        super().__init__(buft, host_bytes(gpu.alloc_host(size), size))

    def _release(self) -> None:
        address = self.address
        super()._release()
        self._gpu.free_host(address)


def host_bytes(address: Address, size: int) -> Bytes:
    """Memory of this process as an array that does not own it."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
