"""CPU_REPACK: host memory of weights in the layout of the CPU's fast matrix products.

A tensor is written as a whole, in the layout of files, and packed as it is written. Reading returns
the file's bytes. Only the CPU's kernels for packed weights can use it in place.
Tested by tests/kernels/test_cpu_packed_buffer.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final, NamedTuple

import numpy as np

from ....alloc.buffer import Buffer, BufferType, Bytes, Data, Reader, as_bytes
from ....alloc.host import aligned_zeros
from ....base.errors import OutOfMemoryError, TensorAccessError
from ....graph.tensor import Tensor
from ...host import free_memory
from ..compiler.native import native
from .formats import FORMATS, format_of
from .moves import PACK_ROWS, UNPACK_ROWS
from .tiles import ROWS

PART_BYTES: Final = 1 << 19  # bytes that a thread reads and packs at once: they stay in its cache


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
        begin = self._whole(tensor, offset, raw.size)
        self._pack(tensor, begin, lambda first, end: raw[first:end])

    def fill_tensor(self, tensor: Tensor, read: Reader) -> None:
        """Read and pack a whole tensor, in parts that threads take in turns.

        Raises:
            TensorAccessError: the tensor is not in this buffer, or its type cannot be packed.
        """
        self._pack(tensor, self._whole(tensor, 0, tensor.nbytes), read)

    def _pack(self, tensor: Tensor, begin: int, read: Reader) -> None:
        memory = self.memory  # `free` does not end it while a thread packs
        parts = list(_parts(tensor, begin))
        rest = iter(parts)  # threads take the next part, so the file is read in order

        def work() -> None:
            pack, runs = native(PACK_ROWS), FORMATS[tensor.type].runs(tensor.ne[0])
            for part in rest:
                data = read(part.begin, part.end)
                to = memory.ctypes.data + part.to
                pack(*runs.args, data.ctypes.data, part.n_rows, to, 0, -(-part.n_rows // ROWS))

        n = min(self.buft.n_threads, len(parts))
        if n == 1:
            work()
            return
        working = [self.buft.threads().submit(work) for _ in range(n)]
        wait(working)  # also after an error: all have ended
        for each in working:
            each.result()

    def get_tensor(self, tensor: Tensor, offset: int = 0, size: int | None = None) -> Bytes:
        end = tensor.nbytes if size is None else offset + size
        self._locate(tensor, offset, end - offset)
        packed = self.memory.ctypes.data + self._whole(tensor, 0, tensor.nbytes)
        whole = np.empty(tensor.nbytes, np.uint8)
        runs, unpack = FORMATS[tensor.type].runs(tensor.ne[0]), native(UNPACK_ROWS)
        for i in range(_n_matrices(tensor)):
            out = whole.ctypes.data + i * _matrix_bytes(tensor)
            unpack(*runs.args, packed + i * _packed_bytes(tensor), tensor.ne[1], out)
        return whole[offset:end]

    def read_tensor(self, tensor: Tensor, out: Bytes, offset: int = 0) -> None:
        out[:] = self.get_tensor(tensor, offset, out.size)

    def memset_tensor(
        self, tensor: Tensor, value: int, offset: int = 0, size: int | None = None
    ) -> None:
        size = tensor.nbytes - offset if size is None else size
        self.set_tensor(tensor, np.full(size, value, np.uint8), offset)

    def _whole(self, tensor: Tensor, offset: int, size: int) -> int:
        """Where the packed tensor begins in the buffer. Only whole tensors can be accessed."""
        begin = self._locate(tensor, offset, size)
        if format_of(tensor) is None:
            raise TensorAccessError(
                f"{tensor!r}: {self.buft.name} can access only whole tensors, no views, of "
                "types that can be packed"
            )
        if size != tensor.nbytes:
            raise TensorAccessError(
                f"{tensor!r}: bytes {offset}..{offset + size} of {tensor.nbytes}: a tensor in "
                f"{self.buft.name} must be written as a whole"
            )
        return begin

    def _write(self, offset: int, data: Bytes) -> None:
        self.memory[offset : offset + data.size] = data

    def _read(self, offset: int, size: int) -> Bytes:
        return self.memory[offset : offset + size].copy()

    def _fill(self, offset: int, size: int, value: int) -> None:
        self.memory[offset : offset + size] = value

    def _release(self) -> None:
        self.memory = np.empty(0, np.uint8)


class _Part(NamedTuple):
    """Rows of a matrix: their bytes in the layout of files, and where they are packed."""

    begin: int
    end: int
    n_rows: int
    to: int


def _parts(tensor: Tensor, begin: int) -> Iterator[_Part]:
    """The parts of a tensor that is packed at `begin`, in the order of the file."""
    row_bytes, n = tensor.type.row_size(tensor.ne[0]), tensor.ne[1]
    step = max(1, PART_BYTES // (ROWS * row_bytes)) * ROWS
    for i in range(_n_matrices(tensor)):
        src, to = i * _matrix_bytes(tensor), begin + i * _packed_bytes(tensor)
        for r in range(0, n, step):
            n_rows = min(step, n - r)
            first = src + r * row_bytes
            yield _Part(first, first + n_rows * row_bytes, n_rows, to + r * row_bytes)


def _n_matrices(tensor: Tensor) -> int:
    return tensor.ne[2] * tensor.ne[3]


def _matrix_bytes(tensor: Tensor) -> int:
    """The bytes of one of a tensor's matrices in the layout of files."""
    return tensor.type.row_size(tensor.ne[0]) * tensor.ne[1]


def _packed_bytes(tensor: Tensor) -> int:
    """The bytes of one of a tensor's matrices in packed rows."""
    return FORMATS[tensor.type].bytes_of(tensor.ne[0], tensor.ne[1])
