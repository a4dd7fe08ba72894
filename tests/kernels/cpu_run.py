"""Computes a node by a plan of CPU kernels, between guard bytes, for the kernels' tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Final
from unittest.mock import patch

import reference_run
from reference_run import GUARD, Array, data, graph_of, locate

from lamella.base.settings import NO_FUSION
from lamella.graph import Graph, Tensor
from lamella.graph.tensor import written_source
from lamella.kernels.cpu.plan import CpuPlan
from lamella.kernels.cpu.pool import ThreadPool
from lamella.kernels.cpu.table import CpuCall
from lamella.kernels.plan.steps import Steps

ALONE: Final = {"group_by_expert"}  # kernels of one thread


@cache
def pool(n_threads: int) -> ThreadPool:
    """A pool of `n_threads`, shared by all tests. They do not spin between runs."""
    return ThreadPool(n_threads, poll=0)


def address_of(_: Tensor, t: Tensor) -> int:
    return int(t.buffer.ctypes.data) + t.offset


def prepare(node: Tensor, over: Tensor | None = None, shift: int = 0) -> None:
    """Allocate a node, and compute its sources with the reference kernels."""
    for src in node.src:
        if src.buffer is None:
            reference_run.compute(src)
    locate(node, over, shift)


def compute(node: Tensor, n_threads: int = 1, over: Tensor | None = None, shift: int = 0) -> Array:
    """Compute a node with the CPU kernels and return its array. Nothing else may be written.

    Args:
        node: the node; the reference kernels compute its sources.
        n_threads: threads of the pool. All share the node, however small it is.
        over: a tensor whose memory the result shares.
        shift: bytes off the alignment.
    """
    prepare(node, over, shift)
    kept = [s for s in node.src if s is not written_source(node)]
    others = {s.root: s.root.buffer.copy() for s in kept if s.root.buffer is not node.buffer}
    with all_threads():
        compiled = CpuPlan(graph_of(node), address_of, n_threads)
    compiled.run(pool(n_threads))
    check_guards(node)
    for src, before in others.items():
        assert (src.buffer == before).all(), f"{node}: its source {src} was written"
    return data(node)


def check_guards(node: Tensor) -> None:
    """Check the bytes around a node's result, and around the states that it wrote."""
    for t in (node, written_source(node)):
        if t is not None:
            root = t.root
            end = root.offset + root.nbytes
            assert (root.buffer[: root.offset] == GUARD).all(), f"{node}: bytes before {root}"
            assert (root.buffer[end:] == GUARD).all(), f"{node}: bytes after {root}"


def run_graph(graph: Graph, n_threads: int = 1, fuse: bool = True) -> list[str]:
    """Compute a graph whose nodes have memory, every call on all threads. Return its kernels."""
    with all_threads(), NO_FUSION.set(not fuse):
        plan = CpuPlan(graph, address_of, n_threads)
    plan.run(pool(n_threads))
    return [step.call.kernel.name for step in plan.steps]


def all_threads() -> AbstractContextManager[Any]:
    """Let plans share each call among all threads, however small it is."""
    add = Steps.add

    def add_shared(steps: Steps[CpuCall], node: Tensor, call: CpuCall) -> None:
        add(steps, node, _on_all_threads([call])[0])

    return patch.object(Steps, "add", add_shared)


def _on_all_threads(calls: Sequence[CpuCall]) -> Sequence[CpuCall]:
    return [
        call._replace(
            one_thread=call.kernel.name in ALONE,
            prepared=[q._replace(calls=_on_all_threads(q.calls)) for q in call.prepared],
        )
        for call in calls
    ]
