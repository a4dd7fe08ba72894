"""Timing of single kernel calls on every device: their nodes and costs, and unchanged bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from cuda_grid import GridCompiler, GridDriver, needs_compiler

from lamella.alloc import Usage, alloc_tensors, tensor_get, tensor_set
from lamella.base.errors import BackendError
from lamella.base.settings import NO_FUSION, NO_MERGE
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.graph.cost import KnownUse, cost
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cpu.compute import CpuCompute
from lamella.kernels.cuda.registry import open_cuda
from lamella.kernels.plan.timing import Part, Timing
from lamella.kernels.sim import SimDevice
from lamella.sched.backend import Backend, CallTime, Device

F32, F16, I32, Q4_0 = GGMLType.F32, GGMLType.F16, GGMLType.I32, GGMLType.Q4_0
N, N_FF, N_TOKENS, N_EXPERT, N_USED, N_CELLS, PAGE = 64, 96, 3, 4, 2, 128, 32


def cuda() -> Device:
    return open_cuda(lambda: GridDriver(memory=2**24), GridCompiler).devices()[0]


DEVICES = [
    pytest.param(lambda: CpuDevice(1, repack=False), id="cpu-1"),
    pytest.param(lambda: CpuDevice(2, repack=False), id="cpu-2"),
    pytest.param(lambda: SimDevice("SIM0", compute=lambda: CpuCompute(2)), id="sim"),
    pytest.param(lambda: SimDevice("SIM0"), id="sim-reference"),
    pytest.param(cuda, id="cuda", marks=needs_compiler),
]
fusing = pytest.mark.parametrize("make", [p for p in DEVICES if p.id != "sim-reference"])
on_each = pytest.mark.parametrize("make", DEVICES)
Make = Callable[[], Device]


class Layer:
    """A layer's chains and ops on a device: norms, a gated product, experts, attention."""

    def __init__(self, make: Make) -> None:
        self.device = make()
        self.backend: Backend = self.device.init_backend()
        self._rng = np.random.default_rng(0)
        self._leafs: list[Tensor] = []
        x, y = self._floats(F32, N, N_TOKENS), self._floats(F32, N, N_TOKENS)
        self.add = ops.add(x, y).named("sum")
        norm = ops.rms_norm(self.add, 1e-5).named("norm")
        self.mul = ops.mul(norm, self._floats(F32, N)).named("scaled")
        self.attention(self.mul)
        gate = ops.mul_mat(self._floats(F32, N, N_FF), self.mul).named("gate")
        up = ops.mul_mat(self._floats(F32, N, N_FF), self.mul).named("up")
        self.glu = ops.swiglu(gate, up).named("glu")
        self.experts(self.mul)
        total = ops.add(self.add, self.attended).named("total")
        self.graph = Graph(self.glu.set_output(), self.chosen.set_output(), total.set_output())
        alloc_tensors(self.graph.nodes, self.device.buffer_type, Usage.COMPUTE)
        self.backend.graph_optimize(self.graph)
        self.plan = self.backend.graph_plan_create(self.graph)

    def attention(self, x: Tensor) -> None:
        pos = self._ints(5, 39, 40)  # in two sequences
        cells = self._ints(5, PAGE + 7, PAGE + 8)
        q = ops.rope(ops.reshape(x, (16, 4, N_TOKENS)), pos, n_dims=16)
        k = ops.reshape(ops.rope(q, pos, n_dims=16).named("turned"), (N, N_TOKENS))
        k = ops.set_rows(self._floats(F16, N, N_CELLS), k, cells).named("cache_k")
        v = ops.set_rows(self._floats(F16, N, N_CELLS), x, cells).named("cache_v")
        pages, seq = self._ints(0, 2, 1, 3).named("pages"), self._ints(0, 1, 1)
        pages = ops.reshape(pages, (2, 2))
        spans = self._ints(0, 0, 30).named("begin"), self._ints(6, 40, 41).named("end")
        x = ops.flash_attn_ext(q, k, v, pages, seq, pos, *spans, page_size=PAGE, scale=0.25)
        self.attended = ops.reshape(x.named("fattn"), (N, N_TOKENS))

    def experts(self, x: Tensor) -> None:
        ids = ops.cont(ops.reshape(self._ints(0, 2, 2, 0, 0, 2), (N_USED, N_TOKENS))).named("ids")
        columns = ops.reshape(x, (N, 1, N_TOKENS))
        self.chosen = ops.mul_mat_id(self._floats(F32, N, N_FF, N_EXPERT), columns, ids)
        self.chosen.named("chosen")

    def _floats(self, type: GGMLType, *ne: int) -> Tensor:
        values = self._rng.standard_normal(ne[::-1], np.float32)
        return self._leaf(type, ne, values.astype(np.float16 if type is F16 else np.float32))

    def _ints(self, *values: int) -> Tensor:
        return self._leaf(I32, (len(values),), np.array(values, np.int32))

    def _leaf(self, type: GGMLType, ne: Sequence[int], values: np.ndarray) -> Tensor:
        t = Tensor(type, ne)
        alloc_tensors([t], self.device.buffer_type, Usage.ANY)
        tensor_set(t, values)
        self._leafs.append(t)
        return t

    def results(self) -> list[bytes]:
        return [tensor_get(t).tobytes() for t in self.graph.nodes if t.flags]

    def profile(self) -> list[CallTime]:
        calls = list(self.backend.graph_plan_profile(self.plan))
        self.backend.free()
        return calls


def by_kind(calls: Sequence[CallTime]) -> dict[str, list[CallTime]]:
    found: dict[str, list[CallTime]] = {}
    for call in calls:
        found.setdefault(call.kind, []).append(call)
    return found


@on_each
def test_profiling_changes_no_bits(make: Make) -> None:
    layer = Layer(make)
    layer.backend.graph_plan_compute(layer.plan)
    layer.backend.synchronize()
    plain = layer.results()
    for node in layer.graph.nodes:
        if node.flags:
            tensor_set(node, bytes(node.nbytes))
    assert layer.results() != plain
    calls = layer.profile()
    assert layer.results() == plain
    assert len(calls) >= 10


@on_each
def test_calls_are_in_order_and_do_not_overlap(make: Make) -> None:
    calls = Layer(make).profile()
    times = [time for call in calls for time in (call.begin, call.end)]
    assert times == sorted(times)
    assert times[0] < times[-1]


@on_each
def test_every_node_is_computed_by_some_call(make: Make) -> None:
    layer = Layer(make)
    computed = {node for call in layer.profile() for node in call.nodes}
    views = {"VIEW", "RESHAPE"}
    assert computed == {node for node in layer.graph.nodes if node.op.name not in views}


@fusing
def test_fused_chains_are_one_call(make: Make) -> None:
    with NO_MERGE.set(True):
        layer = Layer(make)
    kinds = by_kind(layer.profile())
    (norm,) = kinds["ADD+RMS_NORM+MUL"]
    assert [node.name for node in norm.nodes] == ["sum", "norm", "scaled"]
    assert norm.cost == cost(norm.nodes, kept=(layer.add,))  # others read the sum
    (rope,) = kinds["ROPE+SET_ROWS"]
    assert [node.name for node in rope.nodes] == ["turned", "cache_k"]
    assert rope.cost.n_written == 2 * N * N_TOKENS
    assert len(kinds["ROPE"]) == 1


@needs_compiler
def test_merged_launches_are_one_call() -> None:
    layer = Layer(cuda)
    (call,) = by_kind(layer.profile())["ROPE+SET_ROWS, SET_ROWS"]
    assert [node.name for node in call.nodes] == ["turned", "cache_k", "cache_v"]
    assert call.cost.n_written == 2 * 2 * N * N_TOKENS


@on_each
def test_without_fusion_each_node_has_its_own_call(make: Make) -> None:
    with NO_FUSION.set(True):
        kinds = by_kind(Layer(make).profile())
    assert not any("+" in kind for kind in kinds)
    assert [len(kinds[kind]) for kind in ("ADD", "RMS_NORM", "MUL")] == [2, 1, 1]


@on_each
def test_costs_that_depend_on_data(make: Make) -> None:
    kinds = by_kind(Layer(make).profile())
    experts = kinds["MUL_MAT_ID"]
    # two of four are in use
    assert experts[-1].cost == cost(experts[-1].nodes, KnownUse(experts=2))
    assert all(call.cost.n_bytes == 0 for call in experts[:-1])
    attention = kinds["FLASH_ATTN_EXT"]
    used = KnownUse(cells=6 + 41, pairs=6 + 40 + 11)
    assert attention[-1].cost == cost(attention[-1].nodes, used)


@pytest.mark.parametrize("make", [pytest.param(lambda: CpuDevice(2), id="packed"), DEVICES[4]])
def test_preparing_a_source_is_a_separate_call(make: Make) -> None:
    device = make()
    weights = Tensor(Q4_0, (N, N_FF))
    x = Tensor(F32, (N, N_TOKENS))
    a, b = ops.mul_mat(weights, x), ops.mul_mat(weights, x)
    graph = Graph(a.set_output(), b.set_output())
    alloc_tensors([x, *graph.nodes], device.buffer_type, Usage.COMPUTE)
    memory = next(iter(device.extra_buffer_types), device.buffer_type)
    alloc_tensors([weights], memory, Usage.WEIGHTS)
    for leaf in (weights, x):
        tensor_set(leaf, bytes(leaf.nbytes))
    backend = device.init_backend()
    with NO_MERGE.set(True):
        plan = backend.graph_plan_create(graph)
    calls = backend.graph_plan_profile(plan)
    backend.free()
    first, *products = calls
    assert first.kind == "MUL_MAT quantize"
    assert first.nodes == (a,)
    assert first.cost.n_read == x.nbytes
    assert first.cost.n_written > 0
    kinds = [call.kind for call in products if call.kind != "results"]  # copies to the host
    assert kinds == ["MUL_MAT", "MUL_MAT"]


@on_each
def test_data_in_flight_counts(make: Make) -> None:
    device = make()
    a, x, ids = Tensor(F32, (N, 8, 4)), Tensor(F32, (N, 1, 3)), Tensor(I32, (2, 3))
    chosen = ops.mul_mat_id(a, x, ids)
    alloc_tensors([a, x, ids, chosen], device.buffer_type, Usage.COMPUTE)
    for leaf in (a, x, ids):
        tensor_set(leaf, bytes(leaf.nbytes))
    backend = device.init_backend()
    plan = backend.graph_plan_create(Graph(chosen))
    three = np.array([0, 2, 2, 3, 0, 3], np.int32)
    backend.set_tensor_async(ids, three)
    calls = backend.graph_plan_profile(plan)
    backend.free()
    assert calls[-1].cost == cost([chosen], KnownUse(experts=3))


@on_each
def test_the_states_in_use_count(make: Make) -> None:
    device = make()
    x, taps, states = Tensor(F32, (8, 4)), Tensor(F32, (2, 8)), Tensor(F32, (8, 6))
    slots = Tensor(I32, (2, 4))
    node = ops.ssm_conv(x, taps, states, slots)
    alloc_tensors([x, taps, states, slots, node], device.buffer_type, Usage.COMPUTE)
    for leaf in (x, taps, states):
        tensor_set(leaf, bytes(leaf.nbytes))
    tensor_set(slots, np.array([[2, 2], [2, 2], [-1, 4], [4, 4]], np.int32))
    backend = device.init_backend()
    calls = backend.graph_plan_profile(backend.graph_plan_create(Graph(node)))
    backend.free()
    assert calls[-1].cost == cost([node], KnownUse(states=2))


@fusing
def test_an_error_of_a_kernel_is_raised_as_always(make: Make) -> None:
    device = make()
    a, ids = Tensor(F32, (8, 4)), Tensor(I32, (1,))
    rows = ops.get_rows(a, ids).named("rows")
    alloc_tensors([a, ids, rows], device.buffer_type, Usage.COMPUTE)
    tensor_set(ids, np.array([7], np.int32))
    backend = device.init_backend()
    plan = backend.graph_plan_create(Graph(rows))
    with pytest.raises(BackendError, match=r"rows.*index 7 must be at least 0 and below 4"):
        backend.graph_plan_profile(plan)
    tensor_set(ids, np.array([3], np.int32))
    assert len(backend.graph_plan_profile(plan)) == 1
    backend.free()


@on_each
def test_an_empty_plan_has_no_calls(make: Make) -> None:
    device = make()
    backend = device.init_backend()
    assert list(backend.graph_plan_profile(backend.graph_plan_create(Graph()))) == []
    backend.free()


def test_runs_end_before_calls_whose_cost_depends_on_data() -> None:
    x, ids = Tensor(F32, (4, 1, 1)), Tensor(I32, (1, 1))
    experts = ops.mul_mat_id(Tensor(F32, (4, 4, 2)), x, ids)
    plain, reads = Part("ADD", "add", (x,)), Part("MUL_MAT_ID", "mul_mat_id", (experts,))
    assert list(Timing([plain, plain, reads, plain, reads]).runs()) == [(0, 2), (2, 4), (4, 5)]
    assert list(Timing([reads, plain]).runs()) == [(0, 2)]
    assert list(Timing([]).runs()) == []
