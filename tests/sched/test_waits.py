"""Every wait that shared memory requires. Each test has one slow device: without the wait, memory
is read or written too early."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from lamella.alloc import (
    BufferType,
    HostBuffer,
    HostBufferType,
    Usage,
    alloc_tensors,
    tensor_alloc,
    tensor_get,
    tensor_set,
)
from lamella.base.errors import RequestError
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.kernels.sim import SimBackend, SimBufferType, SimDevice
from lamella.sched import DeviceType, ScheduledGraph, Scheduler

SLOW = 0.02  # seconds

F32 = npt.NDArray[np.float32]


@contextmanager
def opened(*devices: SimDevice) -> Iterator[list[SimBackend]]:
    with ExitStack() as stack:
        backends = [d.init_backend() for d in devices]
        for b in backends:
            stack.callback(b.free)
        yield backends


def gpu(name: str, slow: bool = False, buffer_type: BufferType | None = None) -> SimDevice:
    delay = (lambda: SLOW) if slow else None
    return SimDevice(name, buffer_type=buffer_type, delay=delay)


def cpu(slow: bool = False) -> SimDevice:
    return SimDevice("CPU", DeviceType.CPU, async_=slow, delay=(lambda: SLOW) if slow else None)


def inp(name: str, *ne: int) -> Tensor:
    return Tensor(GGMLType.F32, ne, name=name).set_input()


def weights(buft: BufferType, *ne: int, usage: Usage = Usage.WEIGHTS) -> Tensor:
    tensor = Tensor(GGMLType.F32, ne, name="w")
    alloc_tensors([tensor], buft, usage)
    values = np.random.default_rng(len(ne)).standard_normal(ne[::-1], np.float32)
    tensor_set(tensor, values)
    return tensor


def write(tensor: Tensor, value: float) -> None:
    tensor_set(tensor, np.full(tensor.ne[::-1], value, np.float32))


def read(tensor: Tensor) -> F32:
    return tensor_get(tensor).view(np.float32).reshape(tensor.ne[::-1])


def test_a_split_waits_for_memory_it_shares() -> None:
    """Its only copy is of a graph input; its other source is still being computed."""
    pool = SimBufferType("POOL")
    with opened(gpu("SIM0", True, pool), gpu("SIM1", False, pool), cpu()) as backends:
        scheduler = Scheduler(backends, parallel=True)
        x, y = inp("x", 8), inp("y", 8)
        a = ops.sqr(x)
        out = ops.add(ops.scale(a, 2), y).set_output()
        scheduler.set_tensor_backend(a, backends[0])
        scheduler.set_tensor_backend(out.src[0], backends[1])
        scheduler.set_tensor_backend(out, backends[1])
        scheduled = scheduler.alloc_graph(Graph(out))
        assert [s.backend.name for s in scheduled.splits] == ["SIM0", "SIM1"]
        write(x, 3)
        write(y, 1)
        scheduler.graph_compute(scheduled)
        assert (read(out) == 19).all()


def test_a_copy_is_not_overwritten_before_it_was_read() -> None:
    """The fifth run reuses the first run's copy, which a slow device may not have read yet."""
    with opened(gpu("SIM0", True), cpu()) as backends:
        scheduler = Scheduler(backends, parallel=True)
        log = weights(backends[0].device.buffer_type, 8, 16, usage=Usage.ANY)
        runs = [_Logged(scheduler, log, 8) for _ in range(scheduler.n_copies)]
        for i in range(12):
            runs[i % 4].start(scheduler, row=i, value=i)
        scheduler.synchronize()
        assert read(log)[0, 0, :12, 0].tolist() == [i * i for i in range(12)]


@pytest.mark.parametrize("parallel", [False, True])
def test_a_late_input_is_written_while_the_nodes_before_it_run(parallel: bool) -> None:
    written, waited = threading.Event(), list[bool]()

    def delay() -> float:  # no task of the device ends before the input is written
        waited.append(written.wait(10))
        return 0.0

    with opened(SimDevice("SIM0", delay=delay), cpu()) as backends:
        scheduler = Scheduler(backends, parallel=parallel)
        x, late = inp("x", 8), inp("late", 8).set_late()
        out = ops.add(ops.sqr(x), late).set_output()
        scheduled = scheduler.alloc_graph(Graph(out))

        def write_late() -> None:
            write(late, value)
            written.set()

        for value in (1, 2):
            written.clear()
            scheduler.wait_inputs(scheduled)
            write(x, 3)
            scheduler.graph_compute(scheduled, write_late)
            assert (read(out) == 9 + value).all()
        assert all(waited)


def test_an_error_of_a_late_input_ends_the_run() -> None:
    with opened(gpu("SIM0", True), cpu()) as backends:
        scheduler = Scheduler(backends)
        x, late = inp("x", 8), inp("late", 8).set_late()
        out = ops.add(ops.sqr(x), late).set_output()
        scheduled = scheduler.alloc_graph(Graph(out))
        write(x, 3)

        def fail() -> None:
            raise RequestError("too complex")

        with pytest.raises(RequestError):
            scheduler.graph_compute(scheduled, fail)
        write(x, 4)
        scheduler.graph_compute(scheduled, lambda: write(late, 1))
        assert (read(out) == 17).all()


class _Logged:
    """A graph that writes the square of its input into a row of a log, on the first backend."""

    def __init__(self, scheduler: Scheduler, log: Tensor, width: int, steps: int = 1) -> None:
        self.x, self.row = inp("x", width), Tensor(GGMLType.I32, (1,), name="row").set_input()
        value = self.x
        for _ in range(steps):
            value = ops.scale(value, 1)
        node = ops.set_rows(log, ops.sqr(ops.view(value, (log.ne[0],))), self.row)
        self.scheduled = scheduler.alloc_graph(Graph(node))

    def start(self, scheduler: Scheduler, row: int, value: float) -> None:
        scheduler.wait_inputs(self.scheduled)
        write(self.x, value)
        tensor_set(self.row, np.array([row], np.int32))
        scheduler.graph_compute_async(self.scheduled)


@pytest.mark.parametrize("async_copies", [False, True])
def test_graphs_of_different_layouts_do_not_overwrite_each_other(async_copies: bool) -> None:
    """The second graph's copies are in memory where the first graph still computes."""
    slow = SimDevice("SIM0", delay=lambda: SLOW, async_copies=async_copies)
    with opened(slow, cpu()) as backends:
        scheduler = Scheduler(backends, parallel=True)
        log = weights(backends[0].device.buffer_type, 8, 16, usage=Usage.ANY)
        big = [_Logged(scheduler, log, 256) for _ in range(4)]  # reserves the larger buffer
        small = [_Logged(scheduler, log, 8, steps=4) for _ in range(4)]
        assert big[0].scheduled.layout is not small[0].scheduled.layout
        for i in range(8):
            (small if i % 2 == 0 else big)[i % 4].start(scheduler, row=i, value=i)
        scheduler.synchronize()
        assert read(log)[0, 0, :8, 0].tolist() == [i * i for i in range(8)]


@pytest.mark.parametrize("parallel", [False, True])
def test_inputs_of_another_graph_wait_for_its_memory(parallel: bool) -> None:
    """An asynchronous CPU waits for a slow GPU, and will then use the memory of these inputs."""
    fast_cpu = SimDevice("CPU", DeviceType.CPU, async_=True)
    with opened(gpu("SIM0", True), fast_cpu) as backends:
        scheduler = Scheduler(backends, parallel=parallel)
        logs = [weights(fast_cpu.buffer_type, 64, usage=Usage.ANY) for _ in range(2)]
        xs = [inp("x", 1024), inp("x", 64)]
        scheduled = []
        for log, x in zip(logs, xs, strict=True):
            square = ops.sqr(ops.view(x, (64,), offset=1280 if x is xs[0] else 0))
            scheduler.set_tensor_backend(square, backends[0])
            doubled = ops.scale(square if x is xs[0] else ops.clamp(square, 0, 9), 2)
            scheduler.set_tensor_backend(doubled, backends[1])
            scheduled.append(scheduler.alloc_graph(Graph(ops.cpy(doubled, log))))
        assert all(scheduler.is_current(s) for s in scheduled)
        for i in (1, 0):
            scheduler.wait_inputs(scheduled[i])
            write(xs[i], i + 1)
            scheduler.graph_compute_async(scheduled[i])
        scheduler.synchronize()
        assert [set(read(log).flat) for log in logs] == [{2}, {8}]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("slow_cpu", [False, True])
def test_inputs_may_be_written_on_return(slow_cpu: bool, parallel: bool) -> None:
    """Even if a slow CPU reads them in place, or a slow GPU gets a copy through a view."""
    with opened(gpu("SIM0", not slow_cpu), cpu(slow=slow_cpu)) as backends:
        scheduler = Scheduler(backends, parallel=parallel)
        owner = backends[slow_cpu]
        log = weights(owner.device.buffer_type, 8, 16, usage=Usage.ANY)
        x, row = inp("x", 16), Tensor(GGMLType.I32, (1,), name="row").set_input()
        square = ops.sqr(ops.view(x, (8,), offset=32))
        scheduler.set_tensor_backend(square, owner)
        scheduled = scheduler.alloc_graph(Graph(ops.set_rows(log, square, row)))
        for i in range(3):
            write(x, i)
            tensor_set(row, np.array([i], np.int32))
            scheduler.graph_compute_async(scheduled)
        write(x, 100)
        scheduler.synchronize()
        assert read(log)[0, 0, :3, 0].tolist() == [0, 1, 4]


class _Experts:
    """Weights of experts in host memory, used by a GPU that takes the op over."""

    def __init__(self, backends: Sequence[SimBackend], home: BufferType, n_tokens: int) -> None:
        self.x = inp("x", 32, n_tokens)
        self.gate = weights(backends[0].device.buffer_type, 32, 4)
        self.experts = weights(home, 32, 32, 4)
        self.ids = ops.argsort_top_k(ops.mul_mat(self.gate, self.x), 1)
        b = ops.reshape(self.x, (32, 1, n_tokens))
        self.out = ops.mul_mat_id(self.experts, b, self.ids).set_output()
        self.values = read(self.experts)[0]

    def expected(self, x: F32) -> F32:
        best = np.argmax(x @ read(self.gate)[0, 0].T, axis=-1)
        return np.stack([self.values[e] @ row for e, row in zip(best, x, strict=True)])


def test_the_choice_of_experts_is_awaited() -> None:
    """Only used experts are copied, and which are used is still being computed."""
    host = HostBufferType("CPU")
    slow = SimDevice("SIM0", offload_ops=_OFFLOADED, delay=lambda: SLOW)
    with opened(slow, SimDevice("CPU", DeviceType.CPU, buffer_type=host)) as backends:
        scheduler = Scheduler(backends)
        e = _Experts(backends, host, n_tokens=3)
        scheduled = scheduler.alloc_graph(Graph(e.out))
        assert _copied_experts(scheduled) == 1
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal((3, 32), np.float32)
            tensor_set(e.x, x)
            scheduler.graph_compute(scheduled)
            got = read(e.out)[0].reshape(3, 32)
            np.testing.assert_allclose(got, e.expected(x), rtol=1e-4, atol=1e-5)


def test_only_the_experts_used_are_copied() -> None:
    """Memory of the others is not written."""
    host = HostBufferType("CPU")
    sim = SimDevice("SIM0", offload_ops=_OFFLOADED)
    with opened(sim, SimDevice("CPU", DeviceType.CPU, buffer_type=host)) as backends:
        scheduler = Scheduler(backends)
        e = _Experts(backends, host, n_tokens=1)
        scheduled = scheduler.alloc_graph(Graph(e.out))
        (copy,) = [t.dst for run in scheduled.runs for t in run.transfers if t.expert_node]
        copy.buffer.clear(0xFF)
        x = np.ones((1, 32), np.float32)
        tensor_set(e.x, x)
        scheduler.graph_compute(scheduled)
        used = int(np.argmax(x @ read(e.gate)[0, 0].T))
        written = [bool(np.isfinite(expert).all()) for expert in read(copy)[0]]
        assert written == [i == used for i in range(4)]


def test_an_expert_copy_waits_for_shared_memory() -> None:
    """The copy reuses memory of a tensor that another device still reads."""
    pool, host = SimBufferType("POOL"), HostBufferType("CPU")
    slow = gpu("SIM0", True, pool)
    fast = SimDevice("SIM1", buffer_type=pool, offload_ops=_OFFLOADED)
    with opened(slow, fast, SimDevice("CPU", DeviceType.CPU, buffer_type=host)) as backends:
        scheduler = Scheduler(backends)
        e = _Experts(backends, host, n_tokens=1)
        big = inp("big", 32, 32, 4)  # as large as the experts
        total = ops.sum_rows(ops.sqr(big))
        scheduler.set_tensor_backend(total.src[0], backends[0])
        scheduler.set_tensor_backend(total, backends[0])
        scheduler.set_tensor_backend(e.ids.root, backends[2])
        scheduler.set_tensor_backend(e.ids.root.src[0], backends[2])
        scheduler.set_tensor_backend(e.out, backends[1])
        graph = Graph(e.ids.root)
        graph.build_forward_expand(total.set_output())
        graph.build_forward_expand(e.out)
        scheduled = scheduler.alloc_graph(graph)
        x = np.ones((1, 32), np.float32)
        tensor_set(e.x, x)
        write(big, 2)
        scheduler.graph_compute(scheduled)
        assert _copied_experts(scheduled) == 1
        assert (read(total) == 4 * 32).all()
        np.testing.assert_allclose(read(e.out)[0].reshape(1, 32), e.expected(x), rtol=1e-4)


_OFFLOADED = (Op.MUL_MAT_ID,)


def _copied_experts(scheduled: ScheduledGraph) -> int:
    return sum(t.expert_node is not None for run in scheduled.runs for t in run.transfers)


def test_ids_written_in_the_same_split_do_not_choose_what_is_copied() -> None:
    """They are not known before it runs, so all experts are copied."""
    host = HostBufferType("CPU")
    sim = SimDevice("SIM0", offload_ops=_OFFLOADED)
    with opened(sim, SimDevice("CPU", DeviceType.CPU, buffer_type=host)) as backends:
        scheduler = Scheduler(backends)
        e = _Experts(backends, host, n_tokens=3)
        alloc_tensors([e.x], sim.buffer_type)  # so the first split has no inputs and does not end
        slot = Tensor(GGMLType.I32, (1, 3), name="slot")
        alloc_tensors([slot], sim.buffer_type)
        ids = ops.cpy(e.ids, slot)
        e.out = ops.mul_mat_id(e.experts, e.out.src[1], ids).set_output()
        scheduled = scheduler.alloc_graph(Graph(e.out))
        assert [[t.name for t in s.inputs] for s in scheduled.splits] == [["w"]]
        _compare(scheduler, scheduled, e, n_runs=3)


@pytest.mark.parametrize("how", ["permuted", "read twice"])
def test_experts_are_copied_whole_if_parts_are_not_enough(how: str) -> None:
    host = HostBufferType("CPU")
    sim = SimDevice("SIM0", offload_ops=(*_OFFLOADED, Op.SUM_ROWS))
    with opened(sim, SimDevice("CPU", DeviceType.CPU, buffer_type=host)) as backends:
        scheduler = Scheduler(backends)
        e = _Experts(backends, host, n_tokens=3)
        total = None
        if how == "permuted":  # an expert is not contiguous
            w = weights(host, 32, 4, 32)
            e.experts = ops.permute(w, (0, 2, 1, 3))
            e.out = ops.mul_mat_id(e.experts, e.out.src[1], e.ids).set_output()
            scheduler.set_tensor_backend(e.out, backends[0])
            for node in (e.ids.root, e.ids.root.src[0]):  # an earlier split chooses the experts
                scheduler.set_tensor_backend(node, backends[1])
            graph = Graph(e.out)
        else:
            total = ops.sum_rows(e.experts).set_output()
            scheduler.set_tensor_backend(total, backends[0])
            graph = Graph(e.out, total)
        scheduled = scheduler.alloc_graph(graph)
        assert _copied_experts(scheduled) == 0
        if total is None:
            e.values = read(w)[0].transpose(1, 0, 2)
        _compare(scheduler, scheduled, e, n_runs=2)
        if total is not None:
            np.testing.assert_allclose(
                read(total)[0, ..., 0], e.values.sum(-1), rtol=1e-3, atol=1e-4
            )


def _compare(scheduler: Scheduler, scheduled: ScheduledGraph, e: _Experts, n_runs: int) -> None:
    for seed in range(n_runs):
        x = np.random.default_rng(seed).standard_normal((3, 32), np.float32)
        tensor_set(e.x, x)
        scheduler.graph_compute(scheduled)
        got = read(e.out)[0].reshape(3, 32)
        np.testing.assert_allclose(got, e.expected(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_node_that_writes_into_an_input_is_awaited(parallel: bool) -> None:
    """The memory is an input's, but a node writes it."""
    with opened(gpu("SIM0", True), cpu()) as backends:
        scheduler = Scheduler(backends, parallel=parallel)
        cache = weights(backends[0].device.buffer_type, 8, 2, usage=Usage.ANY).set_input()
        row = Tensor(GGMLType.I32, (1,), name="row").set_input()
        x = inp("x", 8)
        written = ops.set_rows(cache, x, row)
        doubled = ops.scale(written, 2).set_output()
        scheduler.set_tensor_backend(doubled, backends[1])
        scheduled = scheduler.alloc_graph(Graph(doubled))
        write(x, 3)
        tensor_set(row, np.array([1], np.int32))
        scheduler.graph_compute(scheduled)
        assert (read(doubled)[0, 0, 1] == 6).all()


def test_a_view_of_an_input_read_in_place_is_awaited() -> None:
    """With several copies, only work that reads inputs is awaited: here only the view shows it."""
    with opened(cpu(slow=True)) as backends:
        scheduler = Scheduler(backends, parallel=True)
        log = weights(backends[0].device.buffer_type, 8, usage=Usage.ANY)
        x = inp("x", 16)
        node = ops.cpy(ops.sqr(ops.view(x, (8,), offset=32)), log)
        scheduled = scheduler.alloc_graph(Graph(node))
        write(x, 3)
        scheduler.graph_compute_async(scheduled)
        write(x, 100)
        scheduler.synchronize()
        assert (read(log) == 9).all()


def test_a_split_without_inputs_waits_for_the_one_before_it() -> None:
    """Even if their buffers do not show that they share memory: here two have the same bytes."""
    first, second = cpu(slow=True), SimDevice("CPU1", DeviceType.CPU, async_=True)
    memory = np.zeros(64, np.uint8)
    with opened(first, second) as backends:
        scheduler = Scheduler(backends)
        ends = []
        for device in (first, second):
            buffer = HostBuffer(device.buffer_type, memory)
            ends.append(Tensor(GGMLType.F32, (8,), name=device.name))
            tensor_alloc(buffer, ends[-1], 0)
        source = weights(first.buffer_type, 8, usage=Usage.ANY)
        write(source, 3)
        result = weights(second.buffer_type, 8, usage=Usage.ANY)
        graph = Graph(ops.cpy(source, ends[0]), ops.cpy(ends[1], result))
        scheduled = scheduler.alloc_graph(graph)
        assert [(s.backend.name, s.inputs) for s in scheduled.splits] == [("CPU", []), ("CPU1", [])]
        scheduler.graph_compute(scheduled)
        assert (read(result) == 3).all()


@pytest.mark.parametrize("grow", ["reserve", "alloc_graph"])
def test_buffers_move_only_when_no_work_uses_them(grow: str) -> None:
    with opened(gpu("SIM0", True), cpu()) as backends:
        scheduler = Scheduler(backends)
        log = weights(backends[0].device.buffer_type, 8, 16, usage=Usage.ANY)
        run = _Logged(scheduler, log, 8)
        run.start(scheduler, row=5, value=3)
        larger = Graph(ops.scale(inp("large", 4096), 2))
        scheduler.reserve(larger) if grow == "reserve" else scheduler.alloc_graph(larger)
        assert not scheduler.is_current(run.scheduled)
        assert (read(log)[0, 0, 5] == 9).all(), "the buffer moved before the run ended"


# --- the contract of a backend's methods ---


@pytest.mark.parametrize("slow", [0, 1])
def test_an_async_copy_is_ordered_on_both_backends(slow: int) -> None:
    """It sees all earlier work of its source's backend, and none of the later work."""
    with opened(gpu("SIM0", slow == 0), gpu("SIM1", slow == 1)) as (first, second):
        x = weights(first.device.buffer_type, 64, usage=Usage.ANY)
        y = Tensor(GGMLType.F32, (64,), name="y")
        alloc_tensors([y], second.device.buffer_type)
        values = [np.full(64, i, np.float32) for i in range(4)]
        first.set_tensor_async(x, values[1])
        assert second.cpy_tensor_async(first, x, y)
        first.set_tensor_async(x, values[2])
        second.synchronize()
        assert (read(y) == 1).all()
        first.synchronize()
        assert (read(x) == 2).all()
