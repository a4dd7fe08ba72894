"""A device of another process, which may be on another machine.

    device = RemoteDevice("ray:node2/CPU", Control(name, address, secret))

It answers as the worker's device does: the driver knows nothing of its kernels. Tested by
tests/kernels/test_remote_device.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...alloc.buffer import BufferType
from ...graph.graph import Graph
from ...graph.op import Op
from ...graph.tensor import Tensor
from ...sched.backend import Caps, Device, DeviceReport, DeviceType, Event, KeepAlive
from .backend import RemoteBackend, RemoteEvent
from .control import BufferTypeInfo, Control
from .graphs import encode_graph
from .memory import RemoteBufferType


class RemoteDevice(Device):
    """The device of a worker. A CPU is an accelerator here: only the driver's own is the CPU."""

    caps = Caps(async_=True, events=True)

    def __init__(self, name: str, control: Control) -> None:
        self.name = name
        self.control = control
        info = control.info
        self.type = DeviceType.GPU if info["type"] == "gpu" else DeviceType.ACCEL
        self.description = info["description"]
        self.few_tokens = info["few_tokens"]
        self.kernels_by_size = info["kernels_by_size"]
        self.driver_margin = info["driver_margin"]
        self.caveats = {**info["caveats"], "link": str(control.link)}
        self.link = control.link
        described = [BufferTypeInfo(**one) for one in info["buffer_types"]]
        self._bufts = [
            RemoteBufferType(name + one.suffix, i, one, control) for i, one in enumerate(described)
        ]
        self._supported: dict[Any, bool] = {}

    @property
    def lost(self) -> str:
        return self.control.find_loss()

    def memory(self) -> tuple[int, int]:
        return self.control.memory()

    def bandwidth(self, n_threads: int) -> float | None:
        return self.control.bandwidth()

    def report(self) -> DeviceReport:
        facts, lines = self.control.report()
        return DeviceReport({**facts, "name": self.name}, [*lines, f"link: {self.link}"])

    def init_backend(self) -> RemoteBackend:
        return RemoteBackend(self)

    @property
    def buffer_type(self) -> BufferType:
        return self._bufts[0]

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        return self._bufts[1:]

    @property
    def backend_memory(self) -> Sequence[tuple[BufferType, int]]:
        return [(self._bufts[i], size) for i, size in self.control.info["backend_memory"]]

    def supports_op(self, op: Tensor) -> bool:
        if op.op is Op.NONE:
            return True
        key = self._kind_of(op)
        known = self._supported.get(key)
        if known is None:
            graph = Graph()
            graph.nodes = [op]
            sent = encode_graph(graph, self.control.reference_of)
            known = self._supported[key] = self.control.supports(sent)
        return known

    def _kind_of(self, op: Tensor) -> Any:
        """All that the worker's answer depends on: op, types, layouts, and kinds of memory."""
        sources = tuple((s.type, s.ne, s.nb, s.op is Op.NONE, self._buft_of(s)) for s in op.src)
        return op.op, op.params, op.type, op.ne, op.nb, op.view_src is None, sources

    def _buft_of(self, tensor: Tensor) -> BufferType | None:
        buffer = tensor.root.buffer
        return buffer.buft if buffer is not None and buffer.buft in self._bufts else None

    def supports_buft(self, buft: BufferType) -> bool:
        return buft in self._bufts

    def graph_optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        sent = encode_graph(graph, self.control.reference_of)
        order, keep = self.control.optimize(sent)
        graph.nodes[:] = [sent.tensors[i] for i in order]
        return [KeepAlive(sent.tensors[tensor], sent.tensors[until]) for tensor, until in keep]

    def work_size(self, graph: Graph, n_threads: int | None = None) -> int:
        """The worker computes on all its threads."""
        return self.control.work_size(encode_graph(graph, self.control.reference_of))

    def event_new(self) -> Event:
        return RemoteEvent()
