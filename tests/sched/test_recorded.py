"""Runs that start with nothing in flight: they are recorded once, and repeated."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from lamella.alloc import tensor_get, tensor_set
from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.sched import Scheduler
from lamella.sched.backend import Backend, Link
from lamella.sched.profile import Profiler
from lamella.sched.scheduled import ScheduledGraph

N = 8


class World:
    """y = (x + x) on a simulated device, doubled on the processor; both are asynchronous or not."""

    def __init__(self) -> None:
        self.backends: list[Backend] = [SimDevice("SIM0").init_backend()]
        self.backends.append(CpuDevice(1).init_backend())
        self.scheduler = Scheduler(self.backends)
        self.x = Tensor(GGMLType.F32, (N,), name="x").set_input()
        self.a = ops.add(self.x, self.x)
        self.y = ops.add(self.a, self.a).set_output()
        self.scheduler.set_tensor_backend(self.a, self.backends[0])
        self.scheduler.set_tensor_backend(self.y, self.backends[1])
        self.graph: ScheduledGraph = self.scheduler.alloc_graph(Graph(self.y))

    def run(self, value: float) -> float:
        tensor_set(self.x, np.full(N, value, np.float32))
        self.scheduler.graph_compute(self.graph)
        (found,) = set(tensor_get(self.y).view(np.float32).tolist())
        return float(found)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.scheduler.free()
    for backend in world.backends:
        backend.free()


def test_a_run_is_recorded_once_and_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.run(1) == 4
    (recorded,) = world.graph.recorded.values()
    assert len(recorded.calls) >= 3  # two splits and a copy
    monkeypatch.setattr(world.scheduler._executor, "_compute", None)  # not called again
    assert [world.run(value) for value in (2, 3)] == [8, 12]
    assert list(world.graph.recorded.values()) == [recorded]


def test_runs_in_flight_are_not_recorded(world: World) -> None:
    for value in (1.0, 2.0):
        tensor_set(world.x, np.full(N, value, np.float32))
        world.scheduler.graph_compute_async(world.graph)
    assert len(world.graph.recorded) == 1  # the first of them
    first = world.graph.recorded[False, True]
    world.scheduler.synchronize()
    state = world.scheduler._executor.hazards
    before = state.is_idle
    world.scheduler.graph_compute_async(world.graph)  # repeated
    assert (before, state.is_idle) == (True, False)
    state.wait(None, ())  # copies what it knows
    assert state.state() == first.state
    world.scheduler.graph_compute_async(world.graph)  # after work in flight
    world.scheduler.synchronize()
    assert world.run(3) == 12


def test_timed_and_watched_runs_are_not_recorded(world: World) -> None:
    profiler = Profiler()
    world.scheduler.set_profiler(profiler)
    assert world.run(1) == 4
    world.scheduler.set_profiler(None)
    world.scheduler.set_eval_callback(lambda node, ask: not ask)
    assert world.run(2) == 8
    world.scheduler.set_eval_callback(None)
    assert not world.graph.recorded
    assert world.run(3) == 12 and world.graph.recorded
    world.scheduler.set_profiler(profiler)
    profiler.take()
    assert world.run(4) == 16 and profiler.splits


def test_copies_between_processes_are_not_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for backend in world.backends:
        monkeypatch.setattr(backend.device, "link", Link(1e-6, 1e9), raising=False)
    assert [world.run(value) for value in (1, 2)] == [4, 8]
    assert not world.graph.recorded


def test_a_failed_run_is_not_recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(plan: object) -> None:
        raise BackendError("no")

    with monkeypatch.context() as patch:
        patch.setattr(world.backends[1], "graph_plan_compute", fail)
        with pytest.raises(BackendError):
            world.run(1)
    assert not world.graph.recorded
    assert world.run(2) == 8
    assert world.run(3) == 12


def test_what_writes_late_inputs_is_not_kept(world: World) -> None:
    """It may keep a graph and its plans, after its context has been closed."""
    for _ in range(2):  # recorded, and repeated
        tensor_set(world.x, np.ones(N, np.float32))

        def write_late() -> None:
            pass

        kept = weakref.ref(write_late)
        world.scheduler.graph_compute(world.graph, write_late)
        del write_late
        assert kept() is None
