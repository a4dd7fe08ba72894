"""Buffer types and buffers: where tensors' data lies.

A buffer type is a kind of memory (a device's, pinned host memory, a repacked layout); a buffer is
one allocation of it. A backend brings its own subclasses. Knows nothing of backends or ops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from ..base.errors import OutOfMemoryError, TensorAccessError
from ..graph.tensor import Tensor

Bytes = npt.NDArray[np.uint8]
Data = bytes | bytearray | memoryview | npt.NDArray[np.generic]

UNLIMITED: Final = 2**63 - 1


class Usage(Enum):
    """What a buffer holds. The scheduler prefers to run an op where its WEIGHTS are; WORK is what
    backends use beside tensors."""

    ANY = "any"
    WEIGHTS = "weights"
    COMPUTE = "compute"
    WORK = "work"


class BufferType(ABC):
    """A kind of memory.

    `alignment` holds for the offset of every tensor, `max_size` for the bytes of one buffer,
    `capacity` for those of all its buffers together; `is_host` means that the CPU may read a
    tensor's bytes in place. `used` counts the bytes of its buffers that are not freed.
    """

    def __init__(
        self,
        name: str,
        *,
        alignment: int = 64,
        max_size: int = UNLIMITED,
        capacity: int = UNLIMITED,
        is_host: bool = False,
    ) -> None:
        assert alignment.bit_count() == 1, f"alignment {alignment} is no power of two"
        self.name = name
        self.alignment = alignment
        self.max_size = max_size
        self.capacity = capacity
        self.is_host = is_host
        self.used = 0

    def get_alloc_size(self, tensor: Tensor) -> int:
        """Bytes that `tensor` takes in this kind of memory; at least `tensor.nbytes`."""
        return tensor.nbytes

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of `size` bytes; of 0 bytes, an `EmptyBuffer`.

        Raises:
            OutOfMemoryError: names this type, the bytes wanted and, where known, those free.
        """
        if size > self.capacity - self.used:
            raise OutOfMemoryError(self.name, size, self.capacity - self.used)
        buffer = self._alloc(size) if size else EmptyBuffer(self)
        buffer.charged = size
        self.used += size
        return buffer

    @abstractmethod
    def _alloc(self, size: int) -> Buffer: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Buffer(ABC):
    """One allocation. Subclasses bring the raw verbs; offsets count from the buffer's start."""

    def __init__(self, buft: BufferType, size: int) -> None:
        self.buft = buft
        self.size = size
        self.usage = Usage.ANY
        self.charged = 0  # bytes that count as used of its type; 0 for memory from elsewhere
        self.freed = False

    @property
    def address(self) -> int:
        """Where its first byte lies, as its device's kernels see it; 0 if there is none."""
        return 0

    # --- raw verbs of the memory ---

    @abstractmethod
    def _write(self, offset: int, data: Bytes) -> None: ...

    @abstractmethod
    def _read(self, offset: int, size: int) -> Bytes:
        """A copy of `size` bytes."""

    def _read_into(self, offset: int, out: Bytes) -> None:
        out[:] = self._read(offset, out.size)

    @abstractmethod
    def _fill(self, offset: int, size: int, value: int) -> None: ...

    def _copy(self, src: Tensor, dst: Tensor) -> bool:
        """Copy `src`, of whatever buffer, into `dst`, of this one; False if that cannot be done."""
        return False

    # --- verbs on tensors ---

    def init_tensor(self, tensor: Tensor) -> None:  # noqa: B027 - optional
        """Called once for every tensor, view or not, that gets its place in this buffer."""

    def reset(self) -> None:  # noqa: B027 - optional
        """Forget what `init_tensor` attached, before all tensors of the buffer are placed anew.

        Part of ggml's buffer interface. The graph allocator does not call it: earlier graphs stay
        valid in its buffers.
        """

    def set_tensor(self, tensor: Tensor, data: Data, offset: int = 0) -> None:
        """Write `data` at byte `offset` of the tensor.

        Raises:
            TensorAccessError: the tensor does not lie here, or the bytes would leave it.
        """
        raw = as_bytes(data)
        self._write(self._locate(tensor, offset, raw.size), raw)

    def get_tensor(self, tensor: Tensor, offset: int = 0, size: int | None = None) -> Bytes:
        """A copy of `size` bytes (default: to the end) from byte `offset` of the tensor on."""
        size = tensor.nbytes - offset if size is None else size
        return self._read(self._locate(tensor, offset, size), size)

    def read_tensor(self, tensor: Tensor, out: Bytes, offset: int = 0) -> None:
        """Copy bytes from byte `offset` of the tensor on into `out`, a flat array, to fill it."""
        self._read_into(self._locate(tensor, offset, out.size), out)

    def memset_tensor(
        self, tensor: Tensor, value: int, offset: int = 0, size: int | None = None
    ) -> None:
        """Set `size` bytes (default: to the end) from byte `offset` on to `value`.

        Part of ggml's buffer interface.
        """
        size = tensor.nbytes - offset if size is None else size
        self._fill(self._locate(tensor, offset, size), size, value)

    def copy_tensor(self, src: Tensor, dst: Tensor) -> bool:
        """Copy `src`, of whatever buffer, into `dst`, of this one. False: go through the host."""
        buffer_of(src)._locate(src, 0, src.nbytes)
        self._locate(dst, 0, src.nbytes)
        return self._copy(src, dst)

    def clear(self, value: int = 0) -> None:
        """Set every byte to `value`."""
        self._fill(0, self.size, value)

    def free(self) -> None:
        """Give the memory back. Twice is fine; tensors in it lose their data."""
        if not self.freed:
            self.freed = True
            self.buft.used -= self.charged
            self._release()

    def __del__(self) -> None:
        if not getattr(self, "freed", True):
            self.free()

    def _release(self) -> None:  # noqa: B027 - optional
        """Let go of the memory."""

    def _locate(self, tensor: Tensor, offset: int, size: int) -> int:
        if tensor.buffer is not self:
            raise TensorAccessError(f"{tensor!r} does not lie in this buffer of {self.buft.name}")
        if self.freed:
            raise TensorAccessError(f"{tensor!r}: its buffer of {self.buft.name} has been freed")
        if offset < 0 or size < 0 or offset + size > tensor.nbytes:
            raise TensorAccessError(
                f"{tensor!r}: bytes {offset}..{offset + size} leave the tensor of "
                f"{tensor.nbytes} bytes"
            )
        return tensor.offset + offset

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.buft.name} {self.size} bytes {self.usage.value}>"


class EmptyBuffer(Buffer):
    """A buffer of 0 bytes: tensors without elements lie in it."""

    def __init__(self, buft: BufferType) -> None:
        super().__init__(buft, 0)

    def _write(self, offset: int, data: Bytes) -> None:
        pass

    def _read(self, offset: int, size: int) -> Bytes:
        return np.empty(size, np.uint8)

    def _fill(self, offset: int, size: int, value: int) -> None:
        pass

    def _copy(self, src: Tensor, dst: Tensor) -> bool:
        return True


def as_bytes(data: Data) -> Bytes:
    """Any bytes or array as a flat uint8 array, without a copy where it is contiguous."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)


def buffer_of(tensor: Tensor) -> Buffer:
    """The buffer a tensor lies in.

    Raises:
        TensorAccessError: it is not allocated.
    """
    buffer: Buffer | None = tensor.buffer
    if buffer is None:
        raise TensorAccessError(f"{tensor!r} is not allocated")
    return buffer


def tensor_alloc(buffer: Buffer, tensor: Tensor, offset: int) -> None:
    """Give an unallocated tensor, no view, its place in a buffer."""
    assert tensor.buffer is None and tensor.view_src is None, f"{tensor!r} has a place"
    size = buffer.buft.get_alloc_size(tensor)
    assert offset % buffer.buft.alignment == 0, f"{tensor!r}: offset {offset} is not aligned"
    assert offset + size <= buffer.size, f"{tensor!r}: {offset} + {size} leaves {buffer!r}"
    tensor.buffer = buffer
    tensor.offset = offset
    buffer.init_tensor(tensor)


def view_init(tensor: Tensor) -> None:
    """Give a view its place: that of its source, which must have one."""
    source = tensor.view_src
    assert source is not None and source.buffer is not None, f"{tensor!r}: no source to view"
    tensor.buffer = source.buffer
    tensor.offset = source.offset + tensor.view_offs
    tensor.buffer.init_tensor(tensor)


def tensor_set(tensor: Tensor, data: Data, offset: int = 0) -> None:
    """Write `data` at byte `offset` of an allocated tensor."""
    buffer_of(tensor).set_tensor(tensor, data, offset)


def tensor_get(tensor: Tensor, offset: int = 0, size: int | None = None) -> Bytes:
    """A copy of bytes of an allocated tensor."""
    return buffer_of(tensor).get_tensor(tensor, offset, size)


def tensor_read(tensor: Tensor, out: Bytes, offset: int = 0) -> None:
    """Copy bytes of an allocated tensor into `out`, a flat array, to fill it."""
    buffer_of(tensor).read_tensor(tensor, out, offset)


def tensor_copy(src: Tensor, dst: Tensor) -> None:
    """Copy all bytes of `src` to `dst`, of the same layout, wherever both lie; waits until done."""
    assert src.nbytes == dst.nbytes, f"{src!r} and {dst!r} have other sizes"
    if src is dst or buffer_of(dst).copy_tensor(src, dst):
        return
    buffer_of(dst).set_tensor(dst, buffer_of(src).get_tensor(src))
