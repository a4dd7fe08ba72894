"""Backends that decide and measure as a device's own would, but open nothing and compute nothing.

For plans: of a model before it is loaded, of hardware that is not there. Tested by
tests/sched/test_measure.py.
"""

from __future__ import annotations

from ..alloc.buffer import Buffer, Usage
from ..graph.graph import Graph
from .backend import Backend, Device


class MeasuringBackend(Backend):
    """Stands for a backend of `device`, with the memory that it would take. Use it `measuring`."""

    compiles = False

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._own: list[Buffer] = []
        for buft, size in device.backend_memory:
            self._own.append(buft.alloc_buffer(size))
            self._own[-1].usage = Usage.WORK

    def graph_compute(self, graph: Graph) -> None:
        raise AssertionError(f"{self.name} was opened to measure, not to compute")

    def graph_plan_create(self, graph: Graph) -> None:
        self.graph_reserve(graph)
