"""Memory of a remote device. The worker allocates it; the driver knows its number and its size.

Tested by tests/kernels/test_remote_device.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from ...alloc.buffer import BufferType, Bytes, Data, FilePart, as_bytes, buffer_of
from ...alloc.host import HostBuffer
from ...base.errors import TensorAccessError
from ...graph.tensor import Tensor
from ...graph.types import GGMLType
from ..device_buffer import DeviceBuffer

if TYPE_CHECKING:
    from .control import BufferTypeInfo, Control


class RemoteBufferType(BufferType):
    """Memory of a remote device. `index` is its number among the device's buffer types.

    `is_packed`: it holds packed weights, as `CPU_REPACK`.
    """

    def __init__(self, name: str, index: int, info: BufferTypeInfo, control: Control) -> None:
        super().__init__(name, alignment=info.alignment, max_size=info.max_size)
        self.index = index
        self.is_packed = info.is_packed
        self.control = control
        self._has_plain_sizes = info.has_plain_sizes
        self._alloc_size = cache(control.alloc_size)

    def get_alloc_size(self, tensor: Tensor) -> int:
        if self._has_plain_sizes:
            return tensor.nbytes
        return self._alloc_size(self.index, tensor.type, tensor.ne)

    def _alloc(self, size: int) -> RemoteBuffer:
        return RemoteBuffer(self, size, self.control.alloc(self, size))


class RemoteBuffer(DeviceBuffer):
    """A buffer of a worker, by its number."""

    buft: RemoteBufferType

    def __init__(self, buft: RemoteBufferType, size: int, id: int) -> None:
        super().__init__(buft, size)
        self.id = id

    def load_tensor(self, tensor: Tensor, parts: Sequence[FilePart], type: GGMLType) -> bool:
        self.buft.control.load(self.id, self._locate(tensor, 0, tensor.nbytes), tensor, parts, type)
        return True

    def _write(self, offset: int, data: Bytes) -> None:
        self.buft.control.write(self.id, offset, data)

    def _read(self, offset: int, size: int) -> Bytes:
        return self.buft.control.read(self.id, offset, size)

    def _fill(self, offset: int, size: int, value: int) -> None:
        self.buft.control.fill(self.id, offset, size, value)

    def _copy(self, src: Tensor, dst: Tensor) -> bool:
        source = buffer_of(src)
        if not isinstance(source, HostBuffer):
            return False
        self._write(dst.offset, source.memory[src.offset : src.offset + src.nbytes])
        return True

    def set_tensor(self, tensor: Tensor, data: Data, offset: int = 0) -> None:
        """As `Buffer.set_tensor`. Packed memory takes whole tensors only."""
        if not self.buft.is_packed:
            super().set_tensor(tensor, data, offset)
            return
        raw = as_bytes(data)
        place = self._locate(tensor, offset, raw.size)
        if raw.size != tensor.nbytes:
            raise TensorAccessError(f"{tensor!r}: {self.buft.name} takes whole tensors only")
        self.buft.control.set_packed(self.id, place, tensor, raw)

    def get_tensor(self, tensor: Tensor, offset: int = 0, size: int | None = None) -> Bytes:
        if not self.buft.is_packed:
            return super().get_tensor(tensor, offset, size)
        end = tensor.nbytes if size is None else offset + size
        self._locate(tensor, offset, end - offset)
        whole = self.buft.control.get_packed(self.id, tensor.offset, tensor)
        return whole[offset:end]

    def _release(self) -> None:
        self.buft.control.free(self.id)
