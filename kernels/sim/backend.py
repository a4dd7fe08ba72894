"""The backend of a simulated device: one stream of work, computed on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...alloc.buffer import Bytes, Data, as_bytes, buffer_of, tensor_copy, tensor_get, tensor_set
from ...alloc.host import HostBuffer
from ...graph.graph import Graph
from ...graph.tensor import Tensor
from ...sched.backend import Backend, CallTime, Event
from ..compute import Program, unusable_memory
from .memory import device_memory
from .stream import InlineStream, SimEvent, Stream, WorkerStream

if TYPE_CHECKING:
    from .device import SimDevice


class SimBackend(Backend):
    """Runs its work in order: on a worker thread, or at once on a synchronous device.

    A plan is a program with fixed addresses, so the memory must not move.
    """

    device: SimDevice

    def __init__(self, device: SimDevice) -> None:
        super().__init__(device)
        self.stream: Stream = (
            WorkerStream(device.name) if device.caps.async_ else InlineStream(device.name)
        )
        self._ahead = WorkerStream(f"{device.name} copies")
        self._compute = device.new_compute()

    def free(self) -> None:
        self._ahead.close()
        self.stream.close()
        self._compute.close()
        super().free()

    def set_n_threads(self, n: int | None) -> None:
        super().set_n_threads(n)
        self._compute.set_n_threads(n)

    def synchronize(self) -> None:
        self._ahead.synchronize()
        self.stream.synchronize()

    # --- computing ---

    def graph_compute(self, graph: Graph) -> None:
        self.graph_plan_compute(self.graph_plan_create(graph))

    def graph_plan_create(self, graph: Graph) -> Program:
        return self._compute.compile(graph, self._memory_of, self.workspace)

    def graph_plan_compute(self, plan: Program) -> None:
        def task() -> None:
            self.device.spend()
            plan()

        self.stream.submit(task)

    def graph_plan_profile(self, plan: Program) -> Sequence[CallTime]:
        calls: list[CallTime] = []

        def task() -> None:
            self.device.spend()
            calls.extend(plan.profile())

        self.stream.submit(task)
        self.synchronize()
        return calls

    def _memory_of(self, node: Tensor, tensor: Tensor) -> Bytes:
        buffer = buffer_of(tensor)
        memory = device_memory(buffer)
        if memory is None or not self.supports_buft(buffer.buft):
            raise unusable_memory(self.name, node, tensor)
        return memory

    # --- copying ---

    def set_tensor_async(self, tensor: Tensor, data: Data, offset: int = 0) -> None:
        raw = as_bytes(data)
        self._copying(raw.size, lambda: tensor_set(tensor, raw, offset))

    def set_input_async(self, src: Tensor, dst: Tensor) -> bool:
        if not self.device.async_copies or not isinstance(buffer_of(src), HostBuffer):
            return False
        self.set_tensor_async(dst, tensor_get(src))
        return True

    def cpy_tensor_async(self, src_backend: Backend, src: Tensor, dst: Tensor) -> bool:
        can = self.is_async and self.device.async_copies
        if not can or device_memory(buffer_of(src)) is None:
            return False
        other = (
            src_backend if src_backend.is_async else self
        )  # a synchronous backend has finished its work
        if not isinstance(other, SimBackend):
            return False
        _order(other.stream, self.stream)
        self._copying(src.nbytes, lambda: tensor_copy(src, dst))
        _order(self.stream, other.stream)
        return True

    def copy_ahead_async(self, src: Tensor, dst: Tensor) -> None:
        def copy() -> None:
            self.device.spend(src.nbytes)
            tensor_copy(src, dst)

        _order(self.stream, self._ahead)
        self._ahead.submit(copy)

    def wait_copies_ahead(self) -> None:
        _order(self._ahead, self.stream)

    def _copying(self, nbytes: int, copy: Callable[[], object]) -> None:
        def task() -> None:
            self.device.spend(nbytes)
            copy()

        self.stream.submit(task)

    # --- events ---

    def event_record(self, event: Event) -> None:
        assert isinstance(event, SimEvent), f"{event} is no event of a simulated device"
        event.record(self.stream)

    def event_wait(self, event: Event) -> None:
        if isinstance(event, SimEvent):
            event.wait(self.stream)
        else:
            event.synchronize()


def _order(first: Stream, second: Stream) -> None:
    """Let later work of `second` run after all work submitted to `first`."""
    if first is not second:
        event = SimEvent()
        event.record(first)
        event.wait(second)
