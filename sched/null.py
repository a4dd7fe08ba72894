"""Null devices: they decide and have addresses, but no memory and no kernels.

For planning hardware that is not there, for replaying recorded graphs, and for tests of decisions.
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
    """Memory that is only counted."""

    def _alloc(self, size: int) -> Buffer:
        return NullBuffer(self, size)


class NullDevice(Device):
    """A device with settable answers.

    Args:
        name: of the device and its backends.
        type: gpu, accel or cpu.
        buffer_type: its default memory.
        bufts: all memory it can use; only its default where None.
        ops: the ops it supports; all where None. Op NONE is always supported.
        offload_ops: the ops it wants to take over from the CPU.
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
