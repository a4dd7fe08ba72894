"""Measured backends: a device's decisions and sizes, without opening or computing anything.

For the plan of a model before it is loaded. Tested by tests/sched/test_measured.py.
"""

from __future__ import annotations

from ..alloc.buffer import Buffer, Usage
from ..alloc.memory import MeasuredMemory
from ..graph.graph import Graph
from .backend import Backend, Device


class MeasuredBackend(Backend):
    """Stands for a backend of `device`; `memory` counts what that backend would allocate."""

    compiles = False

    def __init__(self, device: Device, memory: MeasuredMemory) -> None:
        super().__init__(device)
        self.memory = memory
        self._own: list[Buffer] = []
        for buft, size in device.backend_memory:
            self._own.append(memory.alloc_buffer(buft, size))
            self._own[-1].usage = Usage.WORK

    def graph_compute(self, graph: Graph) -> None:
        raise AssertionError(f"{self.name} was opened to measure, not to compute")

    def graph_plan_create(self, graph: Graph) -> None:
        self.graph_reserve(graph)
