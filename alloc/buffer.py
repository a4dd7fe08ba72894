"""Buffer types and buffers: the memory of tensors.

A buffer type is a kind of memory (a device's, pinned host memory, a repacked layout). A buffer is
one allocation of it. Each backend has its own subclasses. Does not know backends or ops. Tested by
tests/alloc/test_buffers.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import OutOfMemoryError, TensorAccessError
from ..graph.tensor import Tensor
from ..graph.types import GGMLType
from .dlpack import CPU

Bytes = npt.NDArray[np.uint8]
Data = bytes | bytearray | memoryview | npt.NDArray[np.generic]
Reader = Callable[[int, int], Bytes]  # (begin, end) -> these bytes of a tensor, flat

UNLIMITED: Final = 2**63 - 1


class Usage(Enum):
    """The contents of a buffer. The scheduler prefers to run an op where its WEIGHTS are. WORK is
    the memory of backends themselves, without tensors."""

    ANY = "any"
    WEIGHTS = "weights"
    COMPUTE = "compute"
    WORK = "work"


class FilePart(NamedTuple):
    """Consecutive bytes of a file, from `offset` on."""

    path: Path
    offset: int
    n_bytes: int


class BufferType(ABC):
    """A kind of memory.

    `alignment` applies to the offset of every tensor. `max_size` limits the bytes of one buffer,
    `capacity` those of all buffers together. `is_host` means that the CPU can read a tensor's bytes
    in place. `used` counts the bytes of the buffers that are not freed. `is_zeroed` means that new
    buffers hold zeros.
    """

    is_zeroed: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        *,
        alignment: int = 64,
        max_size: int = UNLIMITED,
        capacity: int = UNLIMITED,
        is_host: bool = False,
    ) -> None:
        assert alignment.bit_count() == 1, f"alignment {alignment} is not a power of two"
        self.name = name
        self.alignment = alignment
        self.max_size = max_size
        self.capacity = capacity
        self.is_host = is_host
        self.used = 0

    def get_alloc_size(self, tensor: Tensor) -> int:
        """The bytes that `tensor` takes in this kind of memory; at least `tensor.nbytes`."""
        return tensor.nbytes

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of `size` bytes; for 0 bytes, an `EmptyBuffer`.

        Raises:
            OutOfMemoryError: names this type, the bytes wanted and, if known, the bytes free.
        """
        if size > self.capacity - self.used:
            raise OutOfMemoryError(self.name, size, self.capacity - self.used)
        buffer = self._alloc(size) if size else EmptyBuffer(self)
        buffer.charged = size
        self.used += size
        return buffer

    @abstractmethod
    def _alloc(self, size: int) -> Buffer: ...

    @property
    def dlpack_device(self) -> tuple[int, int] | None:
        """The device of DLPack, a type and a number, whose memory this is. Fallback: the processor
        if `is_host`, else None."""
        return (CPU, 0) if self.is_host else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Buffer(ABC):
    """One allocation. Subclasses implement raw access; offsets count from the buffer's start."""

    def __init__(self, buft: BufferType, size: int) -> None:
        self.buft = buft
        self.size = size
        self.usage = Usage.ANY
        self.charged = 0  # bytes that its type counts as used
        self.freed = False

    @property
    def address(self) -> int:
        """The address of the first byte for the device's kernels; 0 if there is none."""
        return 0

    # --- raw access to the memory ---

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
        """Copy `src`, of any buffer, into `dst` of this one. Return False if not possible."""
        return False

    # --- access to tensors ---

    def init_tensor(self, tensor: Tensor) -> None:  # noqa: B027 - optional
        """Called once for every tensor and view that is placed in this buffer."""

    def reset(self) -> None:  # noqa: B027 - optional
        """Drop the data of `init_tensor`, before all tensors of the buffer are placed again.

        Part of ggml's buffer interface. The graph allocator does not call it: earlier graphs stay
        valid in its buffers.
        """

    def set_tensor(self, tensor: Tensor, data: Data, offset: int = 0) -> None:
        """Write `data` at byte `offset` of the tensor.

        Raises:
            TensorAccessError: the tensor is not in this buffer, or the bytes are outside it.
        """
        raw = as_bytes(data)
        self._write(self._locate(tensor, offset, raw.size), raw)

    def fill_tensor(self, tensor: Tensor, read: Reader) -> None:
        """Write the whole tensor. `read` may be called by several threads at once, for parts that
        end with a row.

        Raises:
            TensorAccessError: the tensor is not in this buffer.
        """
        self.set_tensor(tensor, read(0, tensor.nbytes))

    def load_tensor(self, tensor: Tensor, parts: Sequence[FilePart], type: GGMLType) -> bool:
        """Let the device read the whole tensor from its own copy of a file, as `type`.

        Fallback: return False and do nothing; the caller reads and writes it.

        Raises:
            ModelFileError: the device's machine does not have the file, or it differs.
        """
        return False

    def get_tensor(self, tensor: Tensor, offset: int = 0, size: int | None = None) -> Bytes:
        """A copy of `size` bytes (default: to the end) from byte `offset` of the tensor on."""
        size = tensor.nbytes - offset if size is None else size
        return self._read(self._locate(tensor, offset, size), size)

    def read_tensor(self, tensor: Tensor, out: Bytes, offset: int = 0) -> None:
        """Fill `out`, a flat array, with bytes of the tensor from byte `offset` on."""
        self._read_into(self._locate(tensor, offset, out.size), out)

    def in_place(self, tensor: Tensor) -> Bytes | None:
        """The tensor's bytes in memory that the host can read, flat, until they are computed again.
        Fallback: None, read a copy."""
        return None

    def memset_tensor(
        self, tensor: Tensor, value: int, offset: int = 0, size: int | None = None
    ) -> None:
        """Set `size` bytes (default: to the end) from byte `offset` on to `value`.

        Part of ggml's buffer interface.
        """
        size = tensor.nbytes - offset if size is None else size
        self._fill(self._locate(tensor, offset, size), size, value)

    def copy_tensor(self, src: Tensor, dst: Tensor) -> bool:
        """Copy `src`, of any buffer, into `dst` of this one. Return False if not possible."""
        buffer_of(src)._locate(src, 0, src.nbytes)
        self._locate(dst, 0, src.nbytes)
        return self._copy(src, dst)

    def clear(self, value: int = 0) -> None:
        """Set every byte to `value`."""
        self._fill(0, self.size, value)

    def free(self) -> None:
        """Free the memory; a second call does nothing. Tensors in it lose their data."""
        if not self.freed:
            self.freed = True
            self.buft.used -= self.charged
            self._release()

    def __del__(self) -> None:
        if not getattr(self, "freed", True):
            self.free()

    def _release(self) -> None:  # noqa: B027 - optional
        """Release the memory."""

    def _locate(self, tensor: Tensor, offset: int, size: int) -> int:
        if tensor.buffer is not self:
            raise TensorAccessError(f"{tensor!r} is not in this buffer of {self.buft.name}")
        if self.freed:
            raise TensorAccessError(f"{tensor!r}: its buffer of {self.buft.name} has been freed")
        if offset < 0 or size < 0 or offset + size > tensor.nbytes:
            raise TensorAccessError(
                f"{tensor!r}: bytes {offset}..{offset + size} are outside the tensor of "
                f"{tensor.nbytes} bytes"
            )
        return tensor.offset + offset

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.buft.name} {self.size} bytes {self.usage.value}>"


class EmptyBuffer(Buffer):
    """A buffer of 0 bytes, for tensors without elements."""

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
    """Bytes or an array as a flat uint8 array, without a copy if contiguous."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)


def buffer_of(tensor: Tensor) -> Buffer:
    """The buffer of a tensor.

    Raises:
        TensorAccessError: the tensor is not allocated.
    """
    buffer: Buffer | None = tensor.buffer
    if buffer is None:
        raise TensorAccessError(f"{tensor!r} is not allocated")
    return buffer


def tensor_alloc(buffer: Buffer, tensor: Tensor, offset: int) -> None:
    """Place an unallocated tensor, not a view, at an offset of a buffer."""
    assert tensor.buffer is None and tensor.view_src is None, f"{tensor!r} is placed already"
    size = buffer.buft.get_alloc_size(tensor)
    assert offset % buffer.buft.alignment == 0, f"{tensor!r}: offset {offset} is not aligned"
    assert offset + size <= buffer.size, f"{tensor!r}: {offset} + {size} does not fit in {buffer!r}"
    tensor.buffer = buffer
    tensor.offset = offset
    buffer.init_tensor(tensor)


def view_init(tensor: Tensor) -> None:
    """Place a view where its source is, which must be placed."""
    source = tensor.view_src
    assert source is not None and source.buffer is not None, f"{tensor!r}: its source is not placed"
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
    """Fill `out`, a flat array, with bytes of an allocated tensor from byte `offset` on."""
    buffer_of(tensor).read_tensor(tensor, out, offset)


def tensor_copy(src: Tensor, dst: Tensor) -> None:
    """Copy all bytes of `src` to `dst`, of the same layout, in any buffers. Returns when done."""
    assert src.nbytes == dst.nbytes, f"{src!r} and {dst!r} differ in size"
    if src is dst or buffer_of(dst).copy_tensor(src, dst):
        return
    buffer_of(dst).set_tensor(dst, buffer_of(src).get_tensor(src))
