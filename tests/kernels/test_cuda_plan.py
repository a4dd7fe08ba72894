"""Plans for a GPU: kernels' parameters, scratch memory, prepared sources, and bad indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import cuda_run
import numpy as np
import pytest
from cuda_grid import GridCompiler, GridDriver, needs_compiler
from reference_run import Array, graph_of, leaf, locate

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.op import Op
from lamella.kernels.cuda import params
from lamella.kernels.cuda.kernel_set import KERNELS
from lamella.kernels.cuda.library import Library
from lamella.kernels.cuda.params import ERROR, N_WORDS, SCRATCH
from lamella.kernels.cuda.plan import ALIGNMENT, CudaPlan
from lamella.kernels.cuda.table import OPS, CudaCall, CudaKernel, CudaSource
from lamella.kernels.plan.calls import PreparedSource
from lamella.kernels.plan.op_table import Implementation
from lamella.kernels.plan.params import MAX_PARAMS, PARAMS, PREPARED
from lamella.kernels.plan.steps import MAX_PREPARED

pytestmark = needs_compiler

TOY = CudaSource.of(str(Path(__file__).with_name("toy_cuda.cu")))

Use = Callable[..., Callable[[Array], Tensor]]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Make an op run these calls. Returns a function that makes a node of the op."""

    def use(op: Op, *calls: CudaCall) -> Callable[[Array], Tensor]:
        monkeypatch.setitem(OPS.entries, op, Implementation(lambda _: True, lambda _: calls))
        return lambda words: node_of(op, words)

    return use


def node_of(op: Op, words: Array) -> Tensor:
    """A node whose memory is `words`, as is its source's, which toy kernels write."""
    x = Tensor(GGMLType.I64, (words.size,), name="x")
    node = Tensor(GGMLType.I64, (words.size,), op=op, src=[x], name=op.name.lower())
    x.buffer = node.buffer = words.view(np.uint8)
    return node


def call(
    name: str,
    *values: int | float,
    block: int = 32,
    shared_memory: int = 0,
    scratch: int = 0,
    prepared: Sequence[PreparedSource[CudaCall]] = (),
    tensors: Sequence[Tensor] = (),
) -> CudaCall:
    kernel = CudaKernel(TOY, name)
    return CudaCall(kernel, (1, 1, 1), block, values, shared_memory, scratch, prepared, tensors)


def zeros(n: int) -> Array:
    return np.zeros(n, np.int64)


# --- a kernel's parameters ---


def test_kernels_read_every_word_at_its_place(use: Use) -> None:
    found = zeros(N_WORDS + 1)
    t = Tensor(GGMLType.F16, (3, 5, 7, 2), name="t")
    t.buffer = np.zeros(t.nbytes, np.uint8)
    values = [-(2**40), *range(100, 113), 1.25, 7]
    node = use(Op.SQR, call("toy_words", *values, block=1, scratch=100))(found)
    node.src += [t]
    plan = cuda_run.run_nodes(node)
    words = plan.launches[0].words
    assert found[N_WORDS] == 8 * N_WORDS, "the size of Params"
    assert found[PARAMS + 14] == 5
    found[PARAMS + 14] = words[PARAMS + 14]
    assert (found[:N_WORDS] == words).all()
    assert words[1:9].tolist() == [found.size, 1, 1, 1, 8, *[8 * found.size] * 3]
    assert words[19:27].tolist() == [*t.ne, *t.nb]
    assert words[PARAMS : PARAMS + 14].tolist() == values[:14]
    assert words.view(np.float64)[PARAMS + 14] == 1.25
    assert len(set(words[[0, 18, SCRATCH, ERROR]])) == 4
    assert words[params.CALL] == words[params.N_BLOCKS] == 1


def test_parameters_that_do_not_fit(use: Use) -> None:
    too_many = use(Op.SQR, call("toy_add", *range(MAX_PARAMS + 1)))(zeros(2))
    with pytest.raises(AssertionError, match="too many"):
        cuda_run.run_nodes(too_many)


def test_a_call_may_name_its_tensors(use: Use) -> None:
    found = zeros(N_WORDS + 1)
    node, other = node_of(Op.SQR, found), leaf(np.array([5, 6, 7]), GGMLType.I64)
    node.src += [other]
    use(Op.SQR, call("toy_words", block=1, tensors=(node, other)))
    cuda_run.run_nodes(node)
    assert found[10:14].tolist() == [3, 1, 1, 1]
    assert not found[18:PREPARED].any()


# --- order ---


def test_calls_run_in_order_with_their_memory(use: Use) -> None:
    words = zeros(1)
    calls = [call("toy_count", n, block=64, shared_memory=512) for n in (1, 10, 100)]
    node = use(Op.SQR, *calls)(words)
    plan = cuda_run.run_nodes(node, node)
    assert words[0] == 222
    assert [one.words[params.CALL] for one in plan.launches] == list(range(1, 7))
    assert {one.shared_memory for one in plan.launches} == {512}


def test_too_much_shared_memory(use: Use) -> None:
    node = use(Op.SQR, call("toy_count", 1, block=64, shared_memory=2**20))(zeros(1))
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE: toy_count: 1048576 bytes"):
        cuda_run.run_nodes(node)


def test_views_leafs_and_empty_tensors_need_no_kernel() -> None:
    x = leaf(np.ones((4, 6)))
    for node in (x, ops.reshape(x, (24,)), ops.sqr(ops.view(x, (6, 0), x.nb[:2]))):
        assert KERNELS.calls_of(node) == ()
    assert cuda_run.run_nodes(ops.reshape(x, (24,))).launches == []


def test_a_plan_is_captured(use: Use) -> None:
    gpu = GridDriver().grid_gpus[0]
    address, error, stream = gpu.alloc(8), gpu.alloc(24), gpu.stream_new()
    gpu.fill(address, 0, 8)
    node = use(Op.SQR, call("toy_count", 3, block=64, shared_memory=512))(zeros(1))
    library = Library(gpu, GridCompiler())
    twice = graph_of(node, node)
    plan = CudaPlan(twice, KERNELS, lambda *_: address, library, gpu.alloc, error, count(1))
    gpu.capture_begin(stream)
    plan.launch(gpu, stream)
    graph = gpu.capture_end(stream)
    for _ in range(2):
        gpu.graph_launch(graph, stream)
    gpu.stream_synchronize(stream)
    out = np.empty(8, np.uint8)
    gpu.read(out, address)
    assert out.view(np.int64) == 12


# --- scratch memory ---


def test_scratch_memory_lasts_as_long_as_a_node(use: Use) -> None:
    words, n = zeros(3), 100
    calls = [call(f"toy_{name}_scratch", 7, n, scratch=8 * n) for name in ("put", "sum")]
    plan = cuda_run.run_nodes(use(Op.SQR, *calls)(words))
    assert words[0] == sum(range(7, 7 + n))
    assert words[1] % ALIGNMENT == 0
    assert plan.work_size == 1024


def test_scratch_memory_fits_the_largest_request(use: Use) -> None:
    words = zeros(3)
    small = use(Op.SQR, call("toy_sum_scratch", 0, 0, scratch=100))(words)
    large = use(Op.SQRT, *(call("toy_sum_scratch", 0, 0, scratch=n) for n in (1000, 1025)))(words)
    none = use(Op.LOG, call("toy_sum_scratch", 0, 0))(words)
    sizes = [cuda_run.run_nodes(*nodes).work_size for nodes in ([none], [small], [small, large])]
    assert sizes == [0, ALIGNMENT, 1280]


# --- prepared sources ---


def make(x: Tensor, form: int, number: int = 1) -> PreparedSource[CudaCall]:
    """`x` plus `form`; `x` is tensor `number` of the call."""
    return PreparedSource(x, form, 8 * x.n_elements, [call("toy_prepare", form, number)])


class Sums:
    """Nodes that sum their prepared sources."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wanted: dict[Tensor, list[PreparedSource[CudaCall]]] = {}

        def calls(node: Tensor) -> Sequence[CudaCall]:
            return [call("toy_sum_prepared", prepared=self.wanted[node])]

        monkeypatch.setitem(OPS.entries, Op.SQR, Implementation(lambda _: True, calls))

    def node(self, *wanted: PreparedSource[CudaCall]) -> Tensor:
        x = wanted[0].tensor
        node = Tensor(GGMLType.I64, x.ne, op=Op.SQR, src=[x, *(w.tensor for w in wanted[1:])])
        locate(node)
        self.wanted[node] = list(wanted)
        return node


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> Sums:
    return Sums(monkeypatch)


def integers(*values: int) -> Tensor:
    return leaf(np.array(values), GGMLType.I64)


def numbers(t: Tensor) -> list[int]:
    start = t.offset
    return list(t.buffer[start : start + t.nbytes].view(np.int64).tolist())


def names(plan: CudaPlan) -> list[str]:
    return [step.call.kernel.name.removeprefix("toy_") for step in plan.steps]


def test_a_source_is_prepared_once_for_all(sums: Sums) -> None:
    x = integers(*range(40))
    nodes = [sums.node(make(x, 100)) for _ in range(3)]
    plan = cuda_run.run_nodes(*nodes)
    assert names(plan) == ["prepare", *["sum_prepared"] * 3]
    for node in nodes:
        assert numbers(node) == [100 + i for i in range(40)]


def test_scratch_memory_and_prepared_sources_do_not_overlap(sums: Sums, use: Use) -> None:
    words = zeros(3)
    use(Op.SQRT, call("toy_sum_scratch", 0, 0, scratch=100))
    x, node = integers(1), node_of(Op.SQRT, words)
    wants = call("toy_sum_scratch", 0, 0, scratch=300, prepared=[make(x, 5)])
    use(Op.LOG, wants)
    other = Tensor(GGMLType.I64, (3,), op=Op.LOG, src=[x])
    locate(other)
    plan = cuda_run.run_nodes(node, other)
    _, scratch, prepared = numbers(other)
    assert scratch == words[1], "calls share it"
    assert prepared == scratch + 512
    assert plan.work_size == 512 + ALIGNMENT


def test_two_sources_of_a_call(sums: Sums) -> None:
    x, y = integers(1, 2), integers(30, 40)
    both = sums.node(make(x, 100), make(y, 200, 2))
    other = sums.node(make(y, 200), make(y, 300))
    plan = cuda_run.run_nodes(both, other)
    assert names(plan) == ["prepare", "prepare", "sum_prepared", "prepare", "sum_prepared"]
    assert (numbers(both), numbers(other)) == ([331, 342], [560, 580])
    words = plan.launches[2].words
    places = words[PREPARED : PREPARED + MAX_PREPARED]
    assert (places % ALIGNMENT == 0).all()
    assert places.min() == words[SCRATCH], "prepared sources begin where scratch memory would"
    assert abs(places[0] - places[1]) >= ALIGNMENT


def test_a_source_that_was_overwritten_is_prepared_again(sums: Sums, use: Use) -> None:
    x = integers(1, 2)
    first, second = sums.node(make(x, 100)), sums.node(make(x, 100))
    use(Op.SQRT, call("toy_count", 5, block=64, shared_memory=512))
    between = Tensor(GGMLType.I64, x.ne, op=Op.SQRT, src=[x], view_src=x)
    locate(between)
    plan = cuda_run.run_nodes(first, between, second)
    assert names(plan) == ["prepare", "sum_prepared", "count", "prepare", "sum_prepared"]
    assert (numbers(first), numbers(second)) == ([101, 102], [106, 102])


def test_more_sources_than_a_call_may_have(sums: Sums) -> None:
    node = sums.node(*(make(integers(1), form) for form in range(MAX_PREPARED + 1)))
    with pytest.raises(AssertionError, match="more than 2 prepared sources"):
        cuda_run.run_nodes(node)


# --- bad indices ---


def test_the_first_bad_index_names_its_node(use: Use) -> None:
    words = zeros(1)
    good = use(Op.SQR, call("toy_fail_at", 4, 5))(words)
    bad = use(Op.SQRT, call("toy_fail_at", 6, 5), call("toy_fail_at", 8, 7))(words)
    goes_on = use(Op.LOG, call("toy_count", 1, block=64, shared_memory=512))(words)
    message = r"sqrt sqrt\[1\] I64: index 6 must be at least 0 and below 5"
    with pytest.raises(BackendError, match=message):
        cuda_run.run_nodes(good, bad, goes_on)
    assert words[0] == 1
    cuda_run.run_nodes(good)


def test_plans_number_their_calls_together(use: Use) -> None:
    gpu = GridDriver().grid_gpus[0]
    address, error = gpu.alloc(8), gpu.alloc(24)
    library, numbers = Library(gpu, GridCompiler()), count(1)
    node = use(Op.SQR, *[call("toy_fail_at", 9, 9)] * 2)(zeros(1))
    plans = [
        CudaPlan(graph_of(node), KERNELS, lambda *_: address, library, gpu.alloc, error, numbers)
        for _ in range(2)
    ]
    calls = [one.words[params.CALL] for plan in plans for one in plan.launches]
    assert calls == [1, 2, 3, 4]
    assert plans[0].error_of(3, 9, 9) is None
    assert "index 9" in str(plans[1].error_of(3, 9, 9))
