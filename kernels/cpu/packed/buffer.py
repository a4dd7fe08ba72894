"""CPU_REPACK: host memory of weights in the layout of the CPU's fast matrix products.

A tensor is written as a whole, in the layout of files, and packed as it is written. Reading returns
the file's bytes. Only the CPU's kernels for packed weights can use it in place.
Tested by tests/kernels/test_cpu_packed_buffer.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from ....alloc.buffer import Buffer, BufferType, Bytes, Data, as_bytes
from ....alloc.host import aligned_zeros
from ....base.errors import OutOfMemoryError, TensorAccessError
from ....graph.tensor import Tensor
from ...host import free_memory
from ..compiler.native import native
from .formats import FORMATS, format_of
from .moves import PACK_ROWS, UNPACK_ROWS
from .tiles import ROWS

PART_BYTES: Final = 1 << 20  # bytes of a matrix from which on another thread is worth its start


class RepackBufferType(BufferType):
    """Host memory of packed weights. `n_threads` threads pack them."""

    is_packed = True  # for `table.is_packed`, which cannot import this class

    def __init__(self, n_threads: int) -> None:
        super().__init__("CPU_REPACK")
        self.n_threads = n_threads
        self._threads: dict[int, ThreadPoolExecutor] = {}

    def threads(self) -> ThreadPoolExecutor:
        """The threads that pack weights. They start on demand and end with the buffer type."""
        process = os.getpid()  # a fork lacks its parent's threads, so it needs new ones
        if process not in self._threads:
            self._threads[process] = ThreadPoolExecutor(self.n_threads, "lamella-pack")
        return self._threads[process]

    def get_alloc_size(self, tensor: Tensor) -> int:
        form = FORMATS.get(tensor.type)
        if form is None:
            return tensor.nbytes
        return form.bytes_of(tensor.ne[0], tensor.ne[1]) * tensor.ne[2] * tensor.ne[3]

    def _alloc(self, size: int) -> RepackBuffer:
        free = free_memory()
        if size > free:
            raise OutOfMemoryError(self.name, size, free)
        return RepackBuffer(self, aligned_zeros(size, self.alignment, self.name))


class RepackBuffer(Buffer):
    """A buffer of packed weights in `memory`."""

    buft: RepackBufferType

    def __init__(self, buft: RepackBufferType, memory: Bytes) -> None:
        super().__init__(buft, memory.size)
        self.memory = memory

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data)

    def set_tensor(self, tensor: Tensor, data: Data, offset: int = 0) -> None:
        """Pack a whole tensor.

        Raises:
            TensorAccessError: the data is a part of a tensor, or the type cannot be packed.
        """
        raw = as_bytes(data)
        at = self._matrices(tensor, offset, raw.size)
        shares = _shares(tensor, self.buft.n_threads)
        for i, packed in enumerate(at):
            pack = _packer(tensor, raw[i * self._size(tensor) :], packed)
            if len(shares) == 1:
                pack(shares[0])
            else:
                list(self.buft.threads().map(pack, shares))

    def get_tensor(self, tensor: Tensor, offset: int = 0, size: int | None = None) -> Bytes:
        end = tensor.nbytes if size is None else offset + size
        self._locate(tensor, offset, end - offset)
        at = self._matrices(tensor, 0, tensor.nbytes)
        whole = np.empty(tensor.nbytes, np.uint8)
        runs, unpack = FORMATS[tensor.type].runs(tensor.ne[0]), native(UNPACK_ROWS)
        for i, packed in enumerate(at):
            out = whole.ctypes.data + i * self._size(tensor)
            unpack(*runs.args, packed, tensor.ne[1], out)
        return whole[offset:end]

    def read_tensor(self, tensor: Tensor, out: Bytes, offset: int = 0) -> None:
        out[:] = self.get_tensor(tensor, offset, out.size)

    def memset_tensor(
        self, tensor: Tensor, value: int, offset: int = 0, size: int | None = None
    ) -> None:
        size = tensor.nbytes - offset if size is None else size
        self.set_tensor(tensor, np.full(size, value, np.uint8), offset)

    def _matrices(self, tensor: Tensor, offset: int, size: int) -> list[int]:
        """The addresses of a tensor's packed matrices."""
        begin = self._locate(tensor, offset, size)
        form = format_of(tensor)
        if form is None:
            raise TensorAccessError(
                f"{tensor!r}: {self.buft.name} can access only whole tensors, no views, of "
                "types that can be packed"
            )
        if size != tensor.nbytes:
            raise TensorAccessError(
                f"{tensor!r}: bytes {offset}..{offset + size} of {tensor.nbytes}: a tensor in "
                f"{self.buft.name} must be written as a whole"
            )
        step, first = form.bytes_of(tensor.ne[0], tensor.ne[1]), self.memory.ctypes.data + begin
        return [first + i * step for i in range(tensor.ne[2] * tensor.ne[3])]

    def _size(self, tensor: Tensor) -> int:
        """The bytes of one of a tensor's matrices in the layout of files."""
        return tensor.type.row_size(tensor.ne[0]) * tensor.ne[1]

    def _write(self, offset: int, data: Bytes) -> None:
        self.memory[offset : offset + data.size] = data

    def _read(self, offset: int, size: int) -> Bytes:
        return self.memory[offset : offset + size].copy()

    def _fill(self, offset: int, size: int, value: int) -> None:
        self.memory[offset : offset + size] = value

    def _release(self) -> None:
        self.memory = np.empty(0, np.uint8)


def _shares(tensor: Tensor, n_threads: int) -> list[tuple[int, int]]:
    """The groups of rows (begin, end) of each thread. Small tensors use fewer threads."""
    n_groups = -(-tensor.ne[1] // ROWS)
    n = min(
        n_threads, n_groups, 1 + tensor.type.row_size(tensor.ne[0]) * tensor.ne[1] // PART_BYTES
    )
    return [(n_groups * i // n, n_groups * (i + 1) // n) for i in range(n)]


def _packer(tensor: Tensor, data: Bytes, packed: int) -> Callable[[tuple[int, int]], None]:
    """A function that packs the groups (begin, end) of a thread."""
    pack, runs = native(PACK_ROWS), FORMATS[tensor.type].runs(tensor.ne[0])

    def run(share: tuple[int, int]) -> None:
        pack(*runs.args, data.ctypes.data, tensor.ne[1], packed, *share)

    return run
