"""The scheduler as its users call it: reserving, allocating, computing, several graphs, errors."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from null_machine import Null, inp, names, weight

from lamella import BackendError, OutOfMemoryError, SchedulingError
from lamella.alloc import HostBufferType, Usage, tensor_get, tensor_set
from lamella.alloc.memory import NullBuffer
from lamella.base.settings import DEBUG
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.kernels.sim import SimDevice
from lamella.sched import Backend, DeviceType, NullBufferType, NullDevice, Scheduler
from lamella.sched.assignment import CAUSES


def product(n_tokens: int, n_more: int = 0) -> Graph:
    """A small graph with an output and `n_more` more nodes."""
    x = inp(8, n_tokens, name="x")
    node = ops.mul(x, x)
    for _ in range(n_more):
        node = ops.mul(node, x)
    return Graph(node.named("out").set_output())


def values(t: Tensor) -> list[float]:
    return [float(v) for v in tensor_get(t).view(np.float32)]


# --- reserving ---


@pytest.mark.parametrize("null", [Null(0), Null(2), Null(1, accel=True)])
def test_sizes_of_another_scheduler_are_enough(null: Null) -> None:
    graph, known = product(100, 3), Scheduler(null.backends)
    known.reserve(graph)
    assert sum(known.buffer_sizes()) > 0
    scheduler = Scheduler(null.backends)
    assert sum(scheduler.buffer_sizes()) == 0
    scheduler.reserve_sizes(known.reserved())
    assert scheduler.buffer_sizes() == known.buffer_sizes()
    scheduler.alloc_graph(graph)
    assert scheduler.reserved() == known.reserved()
    graph.restore()
    assert all(t.buffer is None for t in (*graph.nodes, *graph.leafs))


def test_after_reserve_smaller_graphs_do_not_move_anything() -> None:
    scheduler = Scheduler(Null(2).backends)
    scheduler.reserve(product(100, 3))
    largest = scheduler.buffer_sizes()
    for n in (100, 1, 7):
        scheduled = scheduler.alloc_graph(product(n, 3))
        assert scheduler.buffer_sizes() == largest
        assert scheduler.is_current(scheduled)


def test_a_second_graph_with_more_nodes_over_one_scheduler() -> None:
    """A graph arrives that is not the one that was reserved for."""
    cpu = SimDevice("CPU", DeviceType.CPU)
    scheduler = Scheduler([cpu.init_backend()])
    a, b = inp(1, name="l_a"), inp(1, name="l_b")
    first = Graph(ops.mul(a, b).named("l_r").set_output())
    scheduler.reserve(first)
    language = scheduler.alloc_graph(first)
    size = scheduler.buffer_sizes()

    scheduler.reset()
    c, a2, b2 = inp(1, name="c"), inp(1, name="a2"), inp(1, name="b2")
    second = Graph(ops.mul(c, ops.mul(a2, b2)).named("v_r").set_output())
    vision = scheduler.alloc_graph(second)
    assert names(second.nodes) == ["node_0", "v_r"]
    assert scheduler.buffer_sizes() > size
    for tensor, value in ((c, 2), (a2, 3), (b2, 4)):
        tensor_set(tensor, np.float32(value).tobytes())
    scheduler.graph_compute(vision)
    assert values(second.nodes[-1]) == [24]

    # the buffer has grown, so the first graph has lost its place; it can be scheduled again
    assert not scheduler.is_current(language)
    with pytest.raises(SchedulingError, match="is in a buffer that has moved: allocate it again"):
        scheduler.graph_compute(language)
    language = scheduler.alloc_graph(first)
    tensor_set(a, np.float32(5).tobytes())
    tensor_set(b, np.float32(6).tobytes())
    scheduler.graph_compute(language)
    assert values(first.nodes[0]) == [30]
    assert scheduler.is_current(vision), "the first graph is smaller: nothing moved"


def test_a_graph_of_another_scheduler_is_refused() -> None:
    one, two = Scheduler(Null().backends), Scheduler(Null().backends)
    scheduled = one.alloc_graph(product(4))
    assert not two.is_current(scheduled)
    with pytest.raises(SchedulingError, match="belongs to another scheduler"):
        two.graph_compute(scheduled)


def test_a_buffer_that_fails_to_prepare_a_tensor_leaves_the_graph_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    null = Null()
    scheduler = Scheduler(null.backends)
    graph = product(4, 3)

    def fail(buffer: NullBuffer, tensor: Tensor) -> None:
        if tensor is graph.nodes[1]:
            raise OutOfMemoryError(buffer.buft.name, 1)

    with monkeypatch.context() as patch:
        patch.setattr(NullBuffer, "init_tensor", fail)
        with pytest.raises(OutOfMemoryError):
            scheduler.alloc_graph(graph)
    assert all(t.buffer is None for t in (*graph.nodes, *graph.leafs))
    scheduler.graph_compute(scheduler.alloc_graph(graph))


def test_growth_of_one_buffer_leaves_graphs_in_others_valid() -> None:
    null = Null(2)
    scheduler = Scheduler(null.backends)
    graphs = []
    for i, n in ((0, 4), (1, 4), (1, 400)):
        graph = Graph(ops.sqr(weight(null.gpu_bufts[i], 4, n, usage=Usage.ANY)))
        scheduler.set_tensor_backend(graph.nodes[0], null.backends[i])
        graphs.append(scheduler.alloc_graph(graph))
    assert [scheduler.is_current(g) for g in graphs] == [True, False, True]


def test_a_graph_scheduled_again_ends_its_first_schedule() -> None:
    null = Null()
    scheduler = Scheduler(null.backends)
    graph = product(4)
    scheduler.set_tensor_backend(graph.nodes[0], null.backends[0])
    first = scheduler.alloc_graph(graph)
    second = scheduler.alloc_graph(graph)
    assert names(graph.nodes[0].src) == ["GPU0#x#0"] * 2
    assert (scheduler.is_current(first), scheduler.is_current(second)) == (False, True)
    with pytest.raises(SchedulingError, match="was scheduled again"):
        scheduler.graph_compute(first)


def test_tensors_cannot_be_in_two_scheduled_graphs() -> None:
    """The first graph's memory is reused, so the second would read garbage."""
    scheduler = Scheduler(Null().backends)
    first = product(4)
    scheduler.alloc_graph(first)
    second = Graph(ops.sqr(first.nodes[-1]))
    with pytest.raises(SchedulingError, match=r"x\[8, 4\] F32 was placed with another graph"):
        scheduler.alloc_graph(second)
    first.restore()
    scheduler.alloc_graph(second)


def test_moving_to_another_buffer_type_reserves_again() -> None:
    """The same graph, but a node's buffer type differs from the layout's."""
    null = Null(2)
    scheduler = Scheduler(null.backends)
    where = []
    for backend in null.backends:
        graph = product(4)
        scheduler.reset()
        scheduler.set_tensor_backend(graph.nodes[0], backend)
        scheduler.alloc_graph(graph)
        where.append(graph.nodes[0].buffer.buft.name)
    assert where == ["GPU0", "GPU1", "HOST"]


def test_buffer_types_can_be_chosen() -> None:
    pinned = NullBufferType("PINNED", is_host=True)
    device = NullDevice("CPU", DeviceType.CPU, NullBufferType("CPU"), bufts=[pinned])
    scheduler = Scheduler([device.init_backend()], [pinned])
    graph = product(4)
    scheduler.alloc_graph(graph)
    assert graph.nodes[0].buffer.buft is pinned


# --- by hand ---


def test_assignments_by_hand_hold_until_reset() -> None:
    null = Null()
    scheduler = Scheduler(null.backends)
    graph = product(4)
    node = graph.nodes[0]
    assert scheduler.alloc_graph(graph).backend_of(node).name == "CPU"
    scheduler.set_tensor_backend(node, null.backends[0])
    scheduled = scheduler.alloc_graph(graph)
    assert (scheduled.backend_of(node).name, scheduled.causes[node]) == ("GPU0", "usr")
    scheduler.reset()
    assert scheduler.alloc_graph(graph).backend_of(node).name == "CPU"


def test_views_cannot_be_assigned_away_from_their_source() -> None:
    """Otherwise the view could be copied before its source is computed."""
    null = Null()
    view = ops.view(inp(4, name="x"), (2,)).named("v")
    with pytest.raises(SchedulingError, match=r"v\[2\] F32 is a view .* assign x\[4\] F32 instead"):
        Scheduler(null.backends).set_tensor_backend(view, null.backends[0])


def test_every_cause_is_explained() -> None:
    null = Null(1, accel=True, offload=())
    scheduler = Scheduler(null.backends, parallel=True)
    w = weight(null.gpu_bufts[0], 8, 8)
    graph = Graph(ops.sqr(ops.mul_mat(w, ops.reshape(inp(4, 2), (8,)))))
    scheduled = scheduler.alloc_graph(graph)
    for tensor in (*graph.nodes, *graph.leafs, *scheduled.order.graph.leafs):
        cause = scheduled.causes[tensor]
        assert cause in CAUSES or cause[:5] in CAUSES, cause


# --- copies ---


def test_copies_rotate_and_start_again_after_synchronize() -> None:
    scheduler = Scheduler(Null().backends, parallel=True)
    assert scheduler.n_copies == 4
    taken = []
    for _ in range(6):
        taken.append(scheduler.alloc_graph(product(4)).copy_index)
    assert taken == [0, 1, 2, 3, 0, 1]
    scheduler.synchronize()  # a graph is allocated: rotation goes on
    assert scheduler.alloc_graph(product(4)).copy_index == 2
    scheduler.reset()
    scheduler.synchronize()
    assert scheduler.alloc_graph(product(4)).copy_index == 0


def test_every_change_of_backend_is_a_split() -> None:
    null = Null()
    scheduler = Scheduler(null.backends)
    graph = product(4, 1)
    for node, backend in zip(graph.nodes, null.backends, strict=True):
        scheduler.set_tensor_backend(node, backend)
    assert scheduler.alloc_graph(graph).n_splits == 2


# --- errors ---


def test_backends_are_checked() -> None:
    null = Null()
    gpu, cpu = null.backends
    with pytest.raises(SchedulingError, match="at least one backend"):
        Scheduler([])
    with pytest.raises(
        SchedulingError, match=r"last backend must be of type cpu.*GPU0 is of type gpu"
    ):
        Scheduler([cpu, gpu])
    with pytest.raises(SchedulingError, match="given twice"):
        Scheduler([cpu, cpu])
    with pytest.raises(SchedulingError, match="0 buffer types for 2 backends"):
        Scheduler([gpu, cpu], [])
    with pytest.raises(SchedulingError, match="1 buffer types for 2 backends"):
        Scheduler([gpu, cpu], [null.host])
    with pytest.raises(SchedulingError, match="GPU0 cannot use the buffer type HOST"):
        Scheduler([gpu, cpu], [null.host, null.host])
    with pytest.raises(SchedulingError, match="backend GPU0 is not one of GPU0, CPU"):
        Scheduler([gpu, cpu]).set_tensor_backend(inp(4), Null().backends[0])


def test_out_of_memory_leaves_everything_working() -> None:
    null = Null(1, capacity=10_000)
    scheduler = Scheduler(null.backends)
    small = scheduler.alloc_graph(product(4))
    large = product(100_000)
    for attempt in (scheduler.alloc_graph, scheduler.reserve):
        with pytest.raises(
            OutOfMemoryError, match=r"HOST cannot allocate \d+ bytes, \d+ bytes are free"
        ):
            attempt(large)
        assert all(t.buffer is None for t in (*large.nodes, *large.leafs))
        assert large.nodes[0].src[0].name == "x"
    assert not scheduler.is_current(small)
    again = scheduler.alloc_graph(small.graph)
    assert scheduler.is_current(again)
    scheduler.graph_compute(again)
    scheduler.free()
    assert null.host.used == 0


def test_an_unsupported_op_leaves_the_graph_as_it_was() -> None:
    null = Null(cpu_ops=(), ops=())
    graph = product(4)
    with pytest.raises(SchedulingError, match="no backend supports MUL"):
        Scheduler(null.backends).alloc_graph(graph)
    assert names(graph.nodes[0].src) == ["x", "x"]


def test_a_backend_that_cannot_compile_its_split_leaves_the_graph_as_it_was() -> None:
    """A CPY whose destination is on a device without CPY, where the CPU cannot write either."""
    gpu = SimDevice("SIM0", ops=(Op.SQR,))
    backends = [gpu.init_backend(), SimDevice("CPU", DeviceType.CPU).init_backend()]
    scheduler = Scheduler(backends)
    target = ops.sqr(inp(4, name="x")).named("target")
    scheduler.set_tensor_backend(target, backends[0])
    graph = Graph(ops.cpy(inp(4, name="y"), target).named("written"))
    with pytest.raises(BackendError, match=r"CPU cannot run CPY for written.* in SIM0"):
        scheduler.alloc_graph(graph)
    assert all(t.buffer is None for t in (*graph.nodes, *graph.leafs))
    for backend in backends:
        backend.free()


def test_a_kernel_that_fails_is_an_error_and_the_scheduler_goes_on() -> None:
    gpu, cpu = SimDevice("SIM0"), SimDevice("CPU", DeviceType.CPU)
    backends: list[Backend] = [gpu.init_backend(), cpu.init_backend()]
    scheduler = Scheduler(backends)
    table = Tensor(GGMLType.F32, (4, 3), name="table").set_input()
    ids = Tensor(GGMLType.I32, (1,), name="ids").set_input()
    rows = ops.get_rows(table, ids).set_output()
    scheduler.set_tensor_backend(rows, backends[0])
    scheduled = scheduler.alloc_graph(Graph(ops.sqr(rows).set_output()))
    tensor_set(table, np.arange(12, dtype=np.float32))
    tensor_set(ids, np.array([7], np.int32))
    with pytest.raises(BackendError, match=r"7"):
        scheduler.graph_compute(scheduled)
    tensor_set(table, np.arange(12, dtype=np.float32))
    tensor_set(ids, np.array([2], np.int32))
    scheduler.graph_compute(scheduled)
    assert values(scheduled.graph.nodes[-1]) == [64, 81, 100, 121]
    for backend in backends:
        backend.free()


# --- watching ---


@pytest.mark.parametrize("wanted", [{"a", "d"}, {"b"}, set(), {"a", "b", "c", "d"}])
def test_eval_callback_sees_the_nodes_it_asked_for(wanted: set[str]) -> None:
    cpu, gpu = SimDevice("CPU", DeviceType.CPU), SimDevice("SIM0")
    backends = [gpu.init_backend(), cpu.init_backend()]
    scheduler = Scheduler(backends)
    x = inp(1, name="x")
    a = ops.scale(x, 2).named("a")
    b = ops.scale(a, 2).named("b")
    c = ops.scale(b, 2).named("c")
    d = ops.scale(c, 2).named("d").set_output()
    scheduler.set_tensor_backend(c, backends[0])
    scheduled = scheduler.alloc_graph(Graph(d))
    asked, seen = [], {}

    def callback(node: Tensor, ask: bool) -> bool:
        if ask:
            asked.append(node.name)
            return node.name in wanted
        seen[node.name] = values(node)
        return True

    scheduler.set_eval_callback(callback)
    tensor_set(x, np.float32(1).tobytes())
    scheduler.graph_compute(scheduled)
    assert asked == ["a", "b", "c", "d"]
    everything = {"a": [2.0], "b": [4.0], "c": [8.0], "d": [16.0]}
    assert seen == {name: everything[name] for name in wanted}
    assert values(d) == [16]
    for backend in backends:
        backend.free()


def test_eval_callback_stops_the_whole_run() -> None:
    cpu, gpu = SimDevice("CPU", DeviceType.CPU), SimDevice("SIM0")
    backends = [gpu.init_backend(), cpu.init_backend()]
    scheduler = Scheduler(backends)
    graph = product(1, 3)
    scheduler.set_tensor_backend(graph.nodes[1], backends[0])
    scheduled = scheduler.alloc_graph(graph)
    seen = []

    def callback(node: Tensor, ask: bool) -> bool:
        if not ask:
            seen.append(node)
        return ask

    scheduler.set_eval_callback(callback)
    scheduler.graph_compute(scheduled)
    assert seen == graph.nodes[:1]
    scheduler.set_eval_callback(None)
    tensor_set(graph.leafs[0], np.full(8, 2, np.float32))
    scheduler.graph_compute(scheduled)
    assert values(graph.nodes[-1]) == [32] * 8
    for backend in backends:
        backend.free()


def test_debug_prints_splits_and_causes(caplog: pytest.LogCaptureFixture) -> None:
    null = Null()
    scheduler = Scheduler(null.backends)
    w = weight(null.gpu_bufts[0], 8, 8, name="blk.0.attn_q")
    graph = Graph(ops.mul_mat(w, inp(8, 2, name="x")).named("Qcur-0"))
    with caplog.at_level(logging.DEBUG, logger="lamella"), DEBUG.set(3):
        scheduler.alloc_graph(graph)
    assert "split 0: GPU0, nodes 0..0, 1 computed\n" in caplog.text
    assert "copies: x (input), 64 bytes from CPU\n" in caplog.text
    assert "GPU0 1.wgt0 its weights blk.0.attn_q are on GPU0\n" in caplog.text
    assert "<- blk.0.attn_q, x (copy)\n" in caplog.text
    caplog.clear()
    scheduler.alloc_graph(graph)
    assert caplog.text == ""


def test_a_second_host_buffer_type_is_used_in_place() -> None:
    """Pinned host memory for the CPU's tensors, as with a GPU beside it."""
    pinned = HostBufferType("SIM0_Host")
    cpu = SimDevice("CPU", DeviceType.CPU, reads=[pinned])
    scheduler = Scheduler([cpu.init_backend()], [pinned])
    graph = product(1)
    scheduled = scheduler.alloc_graph(graph)
    tensor_set(graph.leafs[0], np.full(8, 3, np.float32))
    scheduler.graph_compute(scheduled)
    assert values(graph.nodes[0]) == [9] * 8
