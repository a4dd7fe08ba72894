"""Null devices: they take part in decisions, but have no memory and no kernels.

For replaying recorded graphs, for tests of decisions and for benchmarks of the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection

from ..alloc.buffer import Buffer, BufferType
from ..alloc.memory import NullBuffer
from ..graph.graph import Graph
from ..graph.op import Op
from ..graph.tensor import Tensor
from .backend import Backend, Device, DeviceType


class NullBufferType(BufferType):
    """A buffer type whose buffers have addresses but no memory."""

    def _alloc(self, size: int) -> Buffer:
        return NullBuffer(self, size)


class NullDevice(Device):
    """A device with given answers.

    Args:
        name: of the device and its backends.
        type: gpu, accel or cpu.
        buffer_type: its default memory.
        bufts: all buffer types that it can use; None: only its default.
        ops: the ops that it supports; None: all. Op NONE is always supported.
        offload_ops: the ops that it takes over from the CPU.
    """

    description = "decides, but does not compute"

    def __init__(
        self,
        name: str,
        type: DeviceType,
        buffer_type: BufferType,
        *,
        bufts: Collection[BufferType] | None = None,
        ops: Collection[Op] | None = None,
        offload_ops: Collection[Op] = (),
    ) -> None:
        self.name = name
        self.type = type
        self._buffer_type = buffer_type
        self._bufts = frozenset(bufts or (buffer_type,))
        self._ops = frozenset(Op if ops is None else ops) | {Op.NONE}
        self._offload_ops = frozenset(offload_ops)

    def memory(self) -> tuple[int, int]:
        buft = self._buffer_type
        return buft.capacity - buft.used, buft.capacity

    def init_backend(self) -> Backend:
        return NullBackend(self)

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    def supports_op(self, op: Tensor) -> bool:
        return op.op in self._ops

    def supports_buft(self, buft: BufferType) -> bool:
        return buft in self._bufts

    def offload_op(self, op: Tensor) -> bool:
        return op.op in self._offload_ops


class NullBackend(Backend):
    """Computes nothing, at once."""

    def graph_compute(self, graph: Graph) -> None:
        pass
