"""Weights copied while the previous split computes: their order, memory and bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from lamella.alloc import Usage, alloc_tensors, tensor_get, tensor_set
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.kernels.sim import SimBackend, SimDevice
from lamella.sched import DeviceType, ScheduledGraph, Scheduler

CPU = SimDevice("CPU", DeviceType.CPU)
N, SLOW = 64, 0.005  # elements of a row; seconds


def chain(n: int) -> tuple[Tensor, Tensor]:
    """An input, and its product with n matrices in host memory."""
    x = Tensor(GGMLType.F32, (N, N), name="x").set_input()
    y = x
    for i in range(n):
        w = Tensor(GGMLType.F32, (N, N), name=f"w{i}")
        alloc_tensors([w], CPU.buffer_type, Usage.WEIGHTS)
        values = np.random.default_rng(i).standard_normal((N, N), np.float32) / 8
        tensor_set(w, values)
        y = ops.mul_mat(w, y).named(f"y{i}")
    return x, y.set_output()


@contextmanager
def scheduled(
    y: Tensor, parallel: bool = False, **gpu: Any
) -> Iterator[tuple[Scheduler, ScheduledGraph, SimBackend]]:
    """The graph on a slow GPU that takes all products over."""
    device = SimDevice("SIM0", offload_ops=[Op.MUL_MAT], delay=lambda: SLOW, **gpu)
    backends = [device.init_backend(), CPU.init_backend()]
    scheduler = Scheduler(backends, parallel=parallel)
    try:
        yield scheduler, scheduler.alloc_graph(Graph(y)), backends[0]
    finally:
        scheduler.free()
        for backend in backends:
            backend.free()


def compute(scheduler: Scheduler, graph: ScheduledGraph, x: Tensor, y: Tensor) -> bytes:
    tensor_set(x, np.random.default_rng(99).standard_normal((N, N), np.float32))
    scheduler.graph_compute(graph)
    return tensor_get(y).tobytes()


def test_the_next_weights_are_copied_before_a_split_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def record(name: str, entry: Any) -> None:
        method = getattr(SimBackend, name)

        def recorded(self: SimBackend, *args: Any) -> Any:
            if self.name == "SIM0":
                done.append(entry(*args))
            return method(self, *args)

        monkeypatch.setattr(SimBackend, name, recorded)

    record("copy_ahead_async", lambda src, dst: f"copy {src.name}")
    record("wait_copies_ahead", lambda: "wait")
    record("graph_plan_compute", lambda plan: "compute")
    x, y = chain(3)
    with scheduled(y) as (scheduler, graph, _):
        compute(scheduler, graph, x, y)
    assert done == ["copy w1", "compute", "wait", "copy w2", "compute", "wait", "compute"]


def test_two_adjacent_splits_have_their_own_copies_and_the_third_reuses_one() -> None:
    _, y = chain(6)
    with scheduled(y) as (_, graph, _):
        copies = [split.graph.nodes[0].src[0] for split in graph.splits]
        assert [c.name for c in copies] == [f"SIM0#w{i}#0" for i in range(6)]
        places = [range(c.offset, c.offset + c.nbytes) for c in copies]
        nodes = [split.graph.nodes[0] for split in graph.splits]
        for i in range(5):
            ahead = places[i + 1]
            for t in (copies[i], nodes[i], nodes[i].src[1]):
                if t.buffer is copies[i].buffer:
                    assert t.offset >= ahead.stop or t.offset + t.nbytes <= ahead.start, (i, t)
        assert len(set(places)) < 6


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("bandwidth", [None, 1e6])
def test_copying_ahead_changes_no_bits(parallel: bool, bandwidth: float | None) -> None:
    found = []
    for async_copies in (False, True):
        x, y = chain(5)
        with scheduled(y, parallel, bandwidth=bandwidth, async_copies=async_copies) as (
            scheduler,
            graph,
            _,
        ):
            found += [compute(scheduler, graph, x, y) for _ in range(2)]
    assert len(set(found)) == 1


def test_a_device_without_async_copies_copies_nothing_ahead() -> None:
    _, y = chain(3)
    with scheduled(y, async_copies=False) as (_, graph, gpu):
        assert not any(run.ahead or run.waits_ahead for run in graph.runs)
        with pytest.raises(NotImplementedError, match="SIM0 does not"):
            super(SimBackend, gpu).copy_ahead_async(y, y)
        with pytest.raises(NotImplementedError, match="SIM0 does not"):
            super(SimBackend, gpu).wait_copies_ahead()
