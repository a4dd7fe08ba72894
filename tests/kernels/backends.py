"""One interface for the kernels under test: the CPU's, and CUDA's on an emulated GPU.

    @each_backend
    def test_add(on: Backend) -> None:
        on.check(ops.add, leaf(a), leaf(b))

A check computes a node in every way that the backend has: on more threads, with warps in another
order, at less aligned addresses. The bits must be the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

import cpu_run
import cuda_run
import pytest
import reference_run
from cuda_grid import needs_compiler
from reference_run import ERROR, Array, F64Array, assert_close, values_of

from lamella.graph import GGMLType, Graph, Tensor
from lamella.graph.tensor import dup_layout, same_layout
from lamella.kernels.cpu.kernel_set import KERNELS as CPU_KERNELS

Build = Callable[..., Tensor]
Compute = Callable[[Tensor], Array]

FLOATS: Final = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


class Backend(ABC):
    """The kernels of one backend."""

    name: str

    @abstractmethod
    def supports(self, node: Tensor) -> bool:
        """True if the kernels compute a node."""

    @abstractmethod
    def compute(self, node: Tensor, over: Tensor | None = None) -> Array:
        """Compute a node and return its array, in the memory of `over` if that is given."""

    @abstractmethod
    def other_ways(self, node: Tensor) -> Sequence[Compute]:
        """Other ways to compute a node like this one."""

    n_graph_ways: int  # ways to compute a graph

    @abstractmethod
    def run_graph(self, graph: Graph, way: int = 0, fuse: bool = True) -> list[str]:
        """Compute a graph whose nodes have memory. Return the names of its kernels."""

    def computed(self, node: Tensor) -> bytes:
        """Compute a node and return its bytes."""
        assert self.supports(node)
        return self.compute(node).tobytes()

    def check(
        self, build: Build, *sources: Tensor, error: float | None = None, **params: Any
    ) -> F64Array:
        """Check the values of build(*sources, **params): near the reference's, with equal bits in
        every way of computing them.

        `error` is relative to the largest value; None: the default of the node's type.
        """
        node = build(*sources, **params)
        bits = self.computed(node)
        limit = ERROR.get(node.type, 0.0) if error is None else error
        assert_close(values_of(node), reference_run.run(build(*sources, **params)), limit)
        self._assert_bits(lambda: build(*sources, **params), bits)
        return values_of(node)

    def check_in_place(self, build: Build, *sources: Tensor, **params: Any) -> None:
        """Check that the node, written over each source of its layout, has the same bits."""
        bits = self.computed(build(*sources, **params))
        copies = [dup_layout(t, t.name) for t in sources]
        fitting = [i for i, t in enumerate(sources) if same_layout(t, build(*sources, **params))]
        assert fitting, "no source has the node's layout"
        for i in fitting:
            for copy, t in zip(copies, sources, strict=True):
                copy.buffer, copy.offset = t.buffer.copy(), t.offset
            node = build(*copies, **params)
            assert self.compute(node, over=copies[i]).tobytes() == bits, f"{node} over {copies[i]}"

    def assert_same(self, make: Build) -> None:
        """Check that the node of `make` has the reference's bits, in every way of computing it."""
        bits, node = reference_run.bits(make()), make()
        assert self.computed(node) == bits, f"{node} on {self.name}"
        self._assert_bits(make, bits)

    def _assert_bits(self, make: Build, bits: bytes) -> None:
        for i, compute in enumerate(self.other_ways(make())):
            node = make()
            assert compute(node).tobytes() == bits, f"{node} on {self.name}, way {i + 2}"

    def __str__(self) -> str:
        return self.name


class _Cpu(Backend):
    name = "cpu"

    def supports(self, node: Tensor) -> bool:
        return CPU_KERNELS.supports(node)

    def compute(self, node: Tensor, over: Tensor | None = None) -> Array:
        # in place, a thread must not overwrite data that another one reads
        return cpu_run.compute(node, 1 if over is None else 2, over)

    def other_ways(self, node: Tensor) -> Sequence[Compute]:
        return [lambda node: cpu_run.compute(node, 3)]

    n_graph_ways = 3

    def run_graph(self, graph: Graph, way: int = 0, fuse: bool = True) -> list[str]:
        return cpu_run.run_graph(graph, way + 1, fuse)


class _Cuda(Backend):
    name = "cuda"

    def supports(self, node: Tensor) -> bool:
        return cuda_run.supports(node)

    def compute(self, node: Tensor, over: Tensor | None = None) -> Array:
        return cuda_run.compute(node, over)

    def other_ways(self, node: Tensor) -> Sequence[Compute]:
        ways: list[Compute] = [lambda node: cuda_run.compute(node, reverse=True)]
        if node.view_src is None:
            shift = 2 if node.type.is_quantized else node.type.type_size
            ways.append(lambda node: cuda_run.compute(node, shift=shift))
        return ways

    n_graph_ways = 2

    def run_graph(self, graph: Graph, way: int = 0, fuse: bool = True) -> list[str]:
        return cuda_run.run_graph(graph, fuse, reverse=way > 0)


CPU: Final = _Cpu()
CUDA: Final = _Cuda()

each_backend = pytest.mark.parametrize(
    "on", [CPU, pytest.param(CUDA, marks=needs_compiler)], ids=str
)
