"""The linear tensor allocator: places tensors one after another, frees none (ggml_tallocr).

Tested by tests/alloc/test_tallocr.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..base.errors import OutOfMemoryError
from ..graph.tensor import Tensor
from .buffer import Buffer, BufferType, Usage, tensor_alloc, view_init
from .memory import REAL_MEMORY, Memory


def align(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`, a power of two."""
    return (size + alignment - 1) & -alignment


class TensorAllocator:
    """Places tensors in one buffer, in order."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.offset = 0

    def alloc(self, tensor: Tensor) -> None:
        """Place an unallocated tensor after the last one.

        Raises:
            OutOfMemoryError: it does not fit in the rest of the buffer; nothing has changed.
        """
        buft = self.buffer.buft
        size = align(buft.get_alloc_size(tensor), buft.alignment)
        if self.offset + size > self.buffer.size:
            raise OutOfMemoryError(
                f"buffer of {buft.name} for {tensor!r}", size, self.buffer.size - self.offset
            )
        tensor_alloc(self.buffer, tensor, self.offset)
        self.offset += size


def alloc_tensors(
    tensors: Iterable[Tensor],
    buft: BufferType,
    usage: Usage = Usage.ANY,
    memory: Memory = REAL_MEMORY,
) -> list[Buffer]:
    """Allocate the tensors that have no place yet, in buffers of up to `max_size` bytes.

    Views get the place of their source. A tensor larger than `max_size` gets a buffer of its own
    size, which the buffer type allocates or refuses.

    Returns:
        The new buffers.

    Raises:
        OutOfMemoryError: all new buffers are freed again, and every tensor is as before.
    """
    tensors = list(tensors)
    homeless = [t for t in tensors if t.buffer is None and t.view_src is None]
    buffers: list[Buffer] = []
    try:
        for group in _groups(homeless, buft):
            buffers.append(_alloc_group(group, buft, usage, memory))
    except OutOfMemoryError:
        for t in homeless:
            t.buffer, t.offset = None, 0
        for buffer in buffers:
            buffer.free()
        raise
    for t in tensors:
        if t.view_src is not None and t.buffer is None:
            view_init(t)
    return buffers


def _groups(tensors: Sequence[Tensor], buft: BufferType) -> list[list[Tensor]]:
    groups: list[list[Tensor]] = []
    room = -1  # the first tensor opens a group
    for t in tensors:
        size = align(buft.get_alloc_size(t), buft.alignment)
        if size > room:
            groups.append([])
            room = max(size, buft.max_size)
        groups[-1].append(t)
        room -= size
    return groups


def _alloc_group(
    tensors: Sequence[Tensor], buft: BufferType, usage: Usage, memory: Memory
) -> Buffer:
    size = sum(align(buft.get_alloc_size(t), buft.alignment) for t in tensors)
    buffer = memory.alloc_buffer(buft, size)
    buffer.usage = usage
    allocator = TensorAllocator(buffer)
    for t in tensors:
        allocator.alloc(t)
    return buffer
