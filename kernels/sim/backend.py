"""The backend of a simulated device: one stream of work, computed with the reference kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from ...alloc.buffer import Bytes, Data, as_bytes, buffer_of, tensor_copy, tensor_get, tensor_set
from ...alloc.host import array_of
from ...base.errors import BackendError
from ...graph.graph import Graph
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor
from ...sched.backend import Backend, Event
from ..reference import KERNELS, Kernel
from .memory import device_memory
from .stream import InlineStream, SimEvent, Stream, WorkerStream

if TYPE_CHECKING:
    from .device import SimDevice

Array = npt.NDArray[Any]


class Bound(NamedTuple):
    """A kernel with its node and the arrays it works on."""

    kernel: Kernel
    node: Tensor
    dst: Array
    srcs: Sequence[Array]


class SimBackend(Backend):
    """Runs what it is given in order: on a worker thread, or at once on a synchronous device.

    A plan is a list of kernels bound to arrays over the memory, which must not move.
    """

    device: SimDevice

    def __init__(self, device: SimDevice) -> None:
        super().__init__(device)
        self.stream: Stream = (
            WorkerStream(device.name) if device.caps.async_ else InlineStream(device.name)
        )

    def free(self) -> None:
        self.stream.close()

    def synchronize(self) -> None:
        self.stream.synchronize()

    # --- computing ---

    def graph_compute(self, graph: Graph) -> None:
        self.graph_plan_compute(self.graph_plan_create(graph))

    def graph_plan_create(self, graph: Graph) -> list[Bound]:
        return [
            Bound(
                KERNELS[node.op],
                node,
                self._array(node, node),
                [self._array(node, src) for src in node.src],
            )
            for node in graph.nodes
            if node.op not in VIEW_OPS and node.op is not Op.NONE
        ]

    def graph_plan_compute(self, plan: list[Bound]) -> None:
        self.stream.submit(lambda: self._compute(plan))

    def _compute(self, plan: list[Bound]) -> None:
        self.device.spend()
        for kernel, node, dst, srcs in plan:
            kernel(node, dst, srcs)

    def _array(self, node: Tensor, tensor: Tensor) -> Array:
        buffer = buffer_of(tensor)
        memory = device_memory(buffer)
        if memory is None or not self.supports_buft(buffer.buft):
            raise BackendError(
                f"{self.name} cannot run {node.op.name} for {node!r}: it cannot use {tensor!r} "
                f"in {buffer.buft.name}"
            )
        return array_of(tensor, memory)

    # --- copying ---

    def set_tensor_async(self, tensor: Tensor, data: Data, offset: int = 0) -> None:
        raw = as_bytes(data)
        self._copying(raw.size, lambda: tensor_set(tensor, raw, offset))

    def get_tensor_async(self, tensor: Tensor, out: Bytes, offset: int = 0) -> None:
        def get() -> None:
            out[:] = tensor_get(tensor, offset, out.size)

        self._copying(out.size, get)

    def cpy_tensor_async(self, src_backend: Backend, src: Tensor, dst: Tensor) -> bool:
        can = self.is_async and self.device.async_copies
        if not can or device_memory(buffer_of(src)) is None:
            return False
        other = src_backend if src_backend.is_async else self  # else its work is done
        if not isinstance(other, SimBackend):
            return False
        _order(other, self)
        self._copying(src.nbytes, lambda: tensor_copy(src, dst))
        _order(self, other)
        return True

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


def _order(first: SimBackend, second: SimBackend) -> None:
    """Let later work of `second` run after all work `first` has been given."""
    if first is not second:
        event = SimEvent()
        event.record(first.stream)
        event.wait(second.stream)
