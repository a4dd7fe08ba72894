"""A profiler records copies with their bytes, splits and calls; it changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from lamella.alloc import Usage, alloc_tensors, tensor_get, tensor_set
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.kernels.sim import SimDevice
from lamella.sched import Backend, DeviceType, ScheduledGraph, Scheduler
from lamella.sched.profile import CopyTime, Profiler, SplitTime

F32, I32 = GGMLType.F32, GGMLType.I32
N = 8


class Machine:
    """A simulated GPU and CPU, with y = down @ silu(up @ x), each product on one of them."""

    def __init__(self, async_: bool = True) -> None:
        self.cpu = SimDevice("CPU", DeviceType.CPU)
        self.gpu = SimDevice("SIM0", async_=async_)
        self.backends: list[Backend] = [self.gpu.init_backend(), self.cpu.init_backend()]
        self.scheduler = Scheduler(self.backends)
        up, down = Tensor(F32, (N, 2 * N), name="up"), Tensor(F32, (2 * N, N), name="down")
        rng = np.random.default_rng(0)
        for weight, device in ((up, self.gpu), (down, self.cpu)):
            alloc_tensors([weight], device.buffer_type, Usage.WEIGHTS)
            tensor_set(weight, rng.standard_normal(weight.n_elements, np.float32))
        self.x = Tensor(F32, (N, 3), name="x").set_input()
        act = ops.silu(ops.mul_mat(up, self.x).named("h")).named("act")
        self.y = ops.mul_mat(down, act).named("y").set_output()
        self.scheduled = self.scheduler.alloc_graph(Graph(self.y))

    def compute(self, value: float = 1.0) -> bytes:
        tensor_set(self.x, np.full(self.x.n_elements, value, np.float32))
        self.scheduler.graph_compute(self.scheduled)
        return tensor_get(self.y).tobytes()


@contextmanager
def machine(async_: bool = True) -> Iterator[Machine]:
    made = Machine(async_)
    try:
        yield made
    finally:
        made.scheduler.free()
        for backend in made.backends:
            backend.free()


@pytest.mark.parametrize("async_", [True, False])
@pytest.mark.parametrize("each_call", [True, False])
def test_copies_and_splits_are_recorded_in_order(each_call: bool, async_: bool) -> None:
    with machine(async_) as m:
        profiler = Profiler(each_call=each_call)
        m.scheduler.set_profiler(profiler)
        m.compute()
        splits, copies = profiler.take()
        assert [(c.name, c.from_device, c.device, c.n_bytes, c.split) for c in copies] == [
            ("x", "CPU", "SIM0", 4 * 3 * N, 0),
            ("act", "SIM0", "CPU", 4 * 3 * 2 * N, 1),
        ]
        assert [(s.split, s.device, s.graph) for s in splits] == [
            (0, "SIM0", m.scheduled),
            (1, "CPU", m.scheduled),
        ]
        order: list[SplitTime | CopyTime] = [copies[0], splits[0], copies[1], splits[1]]
        times = [time for part in order for time in (part.begin, part.end)]
        assert times == sorted(times)
        assert profiler.take() == ([], [])


def test_calls_are_within_their_splits() -> None:
    with machine() as m:
        profiler = Profiler(each_call=True)
        m.scheduler.set_profiler(profiler)
        m.compute()
        kinds = [[call.kind for call in split.calls] for split in profiler.splits]
        assert kinds == [["MUL_MAT", "UNARY"], ["MUL_MAT"]]
        for split in profiler.splits:
            times = [split.begin, *(t for c in split.calls for t in (c.begin, c.end)), split.end]
            assert times == sorted(times)
        product = profiler.splits[1].calls[0]
        assert product.nodes == (m.y,)
        assert product.cost == (4 * (2 * N * N + 2 * N * 3), 4 * 3 * N, 2 * N * N * 3)


def test_a_split_s_time_is_that_of_its_work() -> None:
    """The profiler synchronizes after each split, so a device's time counts for the right split."""
    with machine() as m:
        m.gpu._delay = lambda: 0.02
        profiler = Profiler()
        m.scheduler.set_profiler(profiler)
        m.compute()
        split = profiler.splits[0]
        assert split.end - split.begin >= 20e6
        assert split.calls == ()
        copy = profiler.copies[0]
        assert copy.end - copy.begin >= 20e6


@pytest.mark.parametrize("each_call", [True, False])
def test_the_bits_are_the_same(each_call: bool) -> None:
    with machine() as m:
        plain = m.compute()
        m.compute(0.0)
        m.scheduler.set_profiler(Profiler(each_call=each_call))
        assert m.compute() == plain
        m.scheduler.set_profiler(None)
        assert m.compute() == plain


def test_without_a_profiler_backends_do_not_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine() as m:
        profiler = Profiler(each_call=True)
        m.scheduler.set_profiler(profiler)
        m.scheduler.set_profiler(None)
        for backend in m.backends:
            monkeypatch.setattr(backend, "graph_plan_profile", None)
        m.compute()
        assert profiler.take() == ([], [])


def test_an_eval_callback_works_with_a_profiler() -> None:
    with machine() as m:
        profiler = Profiler(each_call=True)
        m.scheduler.set_profiler(profiler)
        seen: list[str] = []

        def callback(node: Tensor, ask: bool) -> bool:
            if not ask:
                seen.append(node.name)
            return ask or node.name != "act"

        m.scheduler.set_eval_callback(callback)
        m.compute()
        assert seen == ["h", "act"]  # "act" stopped the run
        assert [split.calls for split in profiler.splits] == [()]


def test_a_backend_without_profiling_computes_as_always() -> None:
    with machine() as m:
        gpu = m.backends[0]
        plain = m.compute()
        m.compute(0.0)
        profiler = Profiler(each_call=True)
        m.scheduler.set_profiler(profiler)
        gpu.graph_plan_profile = lambda plan: Backend.graph_plan_profile(gpu, plan)  # type: ignore[method-assign]
        assert m.compute() == plain
        assert [len(split.calls) for split in profiler.splits] == [0, 1]


def test_only_copied_experts_count() -> None:
    cpu = SimDevice("CPU", DeviceType.CPU)
    gpu = SimDevice("SIM0", offload_ops=[Op.MUL_MAT_ID])
    backends = [gpu.init_backend(), cpu.init_backend()]
    scheduler = Scheduler(backends)
    weights = Tensor(F32, (N, N, 6), name="experts")
    alloc_tensors([weights], cpu.buffer_type, Usage.WEIGHTS)
    tensor_set(weights, bytes(weights.nbytes))
    x = Tensor(F32, (N, 1, 3), name="x").set_input()
    ids = Tensor(I32, (2, 3), name="ids").set_input()
    y = ops.mul_mat_id(weights, x, ids).named("y").set_output()
    scheduled: ScheduledGraph = scheduler.alloc_graph(Graph(y))
    tensor_set(x, bytes(x.nbytes))
    tensor_set(ids, np.array([4, 1, 1, 4, 4, 1], np.int32))
    profiler = Profiler()
    scheduler.set_profiler(profiler)
    scheduler.graph_compute(scheduled)
    found = {copy.name: copy.n_bytes for copy in profiler.copies}
    assert found == {"experts": 2 * 4 * N * N, "x": x.nbytes, "ids": ids.nbytes}
    for backend in backends:
        backend.free()


def test_weights_that_are_copied_ahead_are_timed_too() -> None:
    cpu = SimDevice("CPU", DeviceType.CPU)
    gpu = SimDevice("SIM0", offload_ops=[Op.MUL_MAT], delay=lambda: 0.005)
    backends = [gpu.init_backend(), cpu.init_backend()]
    scheduler = Scheduler(backends)
    x = Tensor(F32, (N, N), name="x").set_input()
    y, rng = x, np.random.default_rng(0)
    for i in range(3):
        weights = Tensor(F32, (N, N), name=f"w{i}")
        alloc_tensors([weights], cpu.buffer_type, Usage.WEIGHTS)
        tensor_set(weights, rng.standard_normal(N * N, np.float32))
        y = ops.mul_mat(weights, y)
    scheduled = scheduler.alloc_graph(Graph(y.set_output()))
    assert any(run.ahead for run in scheduled.runs)
    values = rng.standard_normal(N * N, np.float32)

    def compute() -> bytes:
        tensor_set(x, values)
        scheduler.graph_compute(scheduled)
        return tensor_get(y).tobytes()

    plain = compute()
    profiler = Profiler(each_call=True)
    scheduler.set_profiler(profiler)
    assert compute() == plain
    copied = {copy.name: copy for copy in profiler.copies}
    assert {"w0", "w1", "w2"} <= set(copied)
    assert all(copy.end - copy.begin >= 5e6 for copy in copied.values())
    assert copied["w1"].split < scheduled.n_splits - 1  # it is copied during an earlier split
    scheduler.free()
    for backend in backends:
        backend.free()
