"""Simulated devices: they schedule, copy and wait like real ones, and compute on the host.

    gpu = SimDevice("SIM0", memory=24 * 2**30)
    cpu = SimDevice("CPU", DeviceType.CPU)
    scheduler = Scheduler([gpu.init_backend(), cpu.init_backend()])

They have everything that makes multi-device scheduling hard: memory that the host cannot read, work
that goes on after a call returns, slow copies, unsupported ops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from types import MappingProxyType
from typing import Final

from ...alloc.buffer import UNLIMITED, BufferType
from ...alloc.host import HostBufferType
from ...graph.graph import Graph
from ...graph.op import Op
from ...graph.tensor import Tensor
from ...sched.backend import Caps, Device, DeviceType, Event, KeepAlive
from ..compute import NewCompute, address_of
from ..reference.compute import ReferenceCompute
from .backend import SimBackend
from .memory import SimBufferType
from .stream import SimEvent

CAVEAT: Final = (
    "computes with the CPU's kernels, runs no large batches for the CPU (op offload) and has no "
    "driver. A real GPU of that size also needs 128 MiB for its driver, and memory for op offload "
    "if layers are on the CPU"
)


class SimDevice(Device):
    """A simulated device.

    Args:
        name: the name of the device, its backends and its memory.
        type: GPU and ACCEL have their own memory; CPU uses host memory.
        memory: the size of its memory in bytes.
        buffer_type: memory to use instead of its own, for example another device's.
        reads: further buffer types whose tensors it can use in place.
        ops: the ops that it supports if there is a kernel; None: all.
        offload_ops: the ops that it takes over from the CPU.
        bandwidth: bytes per second of its copies; None: no limit.
        async_: work on its own thread; the default except for CPU.
        events: have events, if it works on a thread; without them others must synchronize.
        async_copies: queue copies from other devices with its other work.
        delay: called before each task; returns the seconds to wait.
        compute: makes the kernels of each backend; NumPy kernels by default.
    """

    caveats = MappingProxyType({"simulated": CAVEAT})

    def __init__(
        self,
        name: str,
        type: DeviceType = DeviceType.GPU,
        *,
        memory: int = UNLIMITED,
        buffer_type: BufferType | None = None,
        reads: Collection[BufferType] = (),
        ops: Collection[Op] | None = None,
        offload_ops: Collection[Op] = (),
        bandwidth: float | None = None,
        async_: bool | None = None,
        events: bool = True,
        async_copies: bool = True,
        delay: Callable[[], float] | None = None,
        compute: NewCompute = ReferenceCompute,
    ) -> None:
        is_cpu = type is DeviceType.CPU
        async_ = not is_cpu if async_ is None else async_
        own = HostBufferType if is_cpu else SimBufferType
        self.name = name
        self.type = type
        self.description = f"simulated {type.value}"
        self.caps = Caps(
            async_=async_,
            events=async_ and events,
            copy_ahead=async_ and async_copies,
        )
        self._buffer_type = buffer_type or own(name, capacity=memory)
        self._host_buffer_type = None if is_cpu else HostBufferType(f"{name}_Host")
        self._reads = frozenset(reads) | {self._buffer_type}
        self._ops = frozenset(Op if ops is None else ops) | {Op.NONE}
        self._offload_ops = frozenset(offload_ops)
        self.async_copies = async_copies
        self._bandwidth = bandwidth
        self._delay = delay
        self.new_compute = compute
        self._support = compute()

    def memory(self) -> tuple[int, int]:
        buft = self._buffer_type
        return buft.capacity - buft.used, buft.capacity

    def init_backend(self) -> SimBackend:
        return SimBackend(self)

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    @property
    def host_buffer_type(self) -> BufferType | None:
        return self._host_buffer_type

    def supports_op(self, op: Tensor) -> bool:
        return op.op in self._ops and self._support.supports(op)

    def supports_buft(self, buft: BufferType) -> bool:
        return buft in self._reads

    def offload_op(self, op: Tensor) -> bool:
        return op.op in self._offload_ops

    def graph_optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        return self._support.optimize(graph)

    def work_size(self, graph: Graph, n_threads: int | None = None) -> int:
        return self._support.work_size(graph, address_of, n_threads)

    def event_new(self) -> Event | None:
        return SimEvent() if self.caps.events else None

    def spend(self, nbytes: int = 0) -> None:
        """Wait as long as a task that copies `nbytes` takes on this device."""
        seconds = self._delay() if self._delay else 0.0
        if self._bandwidth:
            seconds += nbytes / self._bandwidth
        if seconds:
            time.sleep(seconds)
