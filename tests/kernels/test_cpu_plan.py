"""Plans: the order of calls, kernels' parameters, scratch memory, and errors of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cpu_run
import numpy as np
import pytest
import toy_kernels
from cpu_run import address_of
from reference_run import graph_of, ids, leaf, locate
from toy_kernels import Words

from lamella.alloc.buffer import Bytes
from lamella.base.errors import BackendError, ClosedError, OutOfMemoryError, TensorAccessError
from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.op import Op
from lamella.kernels.cpu import plan as plan_module
from lamella.kernels.cpu.compute import CpuCompute
from lamella.kernels.cpu.kernel_set import KERNELS
from lamella.kernels.cpu.plan import CpuPlan
from lamella.kernels.cpu.pool import BARRIER, POOL_KERNELS
from lamella.kernels.cpu.table import OPS, CpuCall, implements
from lamella.kernels.plan.calls import PreparedSource
from lamella.kernels.plan.op_table import Implementation, OpTable
from lamella.kernels.plan.params import MAX_PARAMS

Use = Callable[..., Callable[[Words], Tensor]]

each_size = pytest.mark.parametrize("n_threads", [1, 2, 3, 8])


@pytest.fixture(autouse=True, scope="module")
def _toys() -> None:
    toy_kernels.load()


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Make an op run these calls. Returns a function that makes a node of the op."""

    def use(op: Op, *calls: CpuCall) -> Callable[[Words], Tensor]:
        monkeypatch.setitem(OPS.entries, op, Implementation(lambda _: True, lambda _: calls))
        return lambda words: node_of(op, words)

    return use


def node_of(op: Op, words: Words) -> Tensor:
    """A node whose memory is `words`, as is its source's, which toy kernels write."""
    x = Tensor(GGMLType.I64, (words.size,), name="x")
    node = Tensor(GGMLType.I64, (words.size,), op=op, src=[x], name=op.name.lower())
    x.buffer = node.buffer = words.view(np.uint8)
    return node


def run(nodes: Sequence[Tensor], n_threads: int) -> CpuPlan:
    plan = CpuPlan(graph_of(*nodes), address_of, n_threads)
    plan.run(cpu_run.pool(n_threads))
    return plan


# --- a kernel's parameters ---


def test_a_node_s_tensors_and_parameters(use: Use) -> None:
    words = np.zeros(2, np.int64)
    node = use(Op.SQR, CpuCall(toy_kernels.test_echo, (-(2**40), 1.5)))(words)
    run([node], 2)
    assert words.tolist() == [-(2**40), 3]


def test_parameters_that_do_not_fit(use: Use) -> None:
    words = np.zeros(2, np.int64)
    most = use(Op.SQR, CpuCall(toy_kernels.test_echo, range(MAX_PARAMS)))(words)
    CpuPlan(graph_of(most), address_of, 1)
    one_more = use(Op.SQR, CpuCall(toy_kernels.test_echo, range(MAX_PARAMS + 1)))(words)
    with pytest.raises(AssertionError, match="too many"):
        CpuPlan(graph_of(one_more), address_of, 1)


@each_size
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_scratch_memory_of_threads_does_not_overlap(use: Use, n_threads: int, size: int) -> None:
    places = np.zeros((n_threads, 3), np.int64)
    node = use(Op.SQR, CpuCall(toy_kernels.test_tell_work, work=size, scratch=100))(
        places.reshape(-1)
    )
    plan = run([node], n_threads)
    assert places[:, 0].tolist() == list(range(n_threads))
    assert (places[:, 1:] % 64 == 0).all()
    assert len(set(places[:, 2])) == 1, "threads share the shared memory"
    shared, own = places[0, 2], np.sort(places[:, 1])
    assert (np.diff(own) >= size).all()
    assert own[0] - shared >= 100
    assert plan.work_size >= own[-1] + size - shared


@each_size
def test_the_last_thread_sees_all_writes(use: Use, n_threads: int) -> None:
    words = np.zeros(1 + n_threads, np.int64)
    plan = CpuPlan(
        graph_of(use(Op.SQR, CpuCall(toy_kernels.test_arrive))(words)), address_of, n_threads
    )
    for i in range(1, 101):
        plan.run(cpu_run.pool(n_threads))
        assert words[0] == n_threads * i * (i + 1) // 2, i


@each_size
def test_scratch_memory_lasts_as_long_as_a_node(use: Use, n_threads: int) -> None:
    found = np.zeros(n_threads, np.int64)
    n_words = 50
    put = CpuCall(toy_kernels.test_put_work, [n_words], work=8 * n_words, scratch=8)
    node = use(Op.SQR, put, put._replace(kernel=toy_kernels.test_get_work))(found)
    for _ in range(50):
        found[:] = 0
        run([node], n_threads)
        assert found.tolist() == [1000 + n_words] * n_threads


def test_scratch_memory_fits_the_largest_request(use: Use) -> None:
    words = np.zeros(6, np.int64)
    tell = toy_kernels.test_tell_work
    small = use(Op.SQR, CpuCall(tell, work=100))(words)
    large = use(Op.SQRT, CpuCall(tell, scratch=1000), CpuCall(tell, work=300, scratch=10))(words)
    none = use(Op.LOG, CpuCall(tell))(words)
    assert CpuPlan(graph_of(none), address_of, 2).work_size == 0
    assert CpuPlan(graph_of(small), address_of, 2).work_size == 2 * 128
    assert CpuPlan(graph_of(small, large, none), address_of, 2).work_size == 1024 + 2 * 320


def test_more_scratch_memory_than_there_is(use: Use) -> None:
    node = use(Op.SQR, CpuCall(toy_kernels.test_tell_work, work=2**61))(np.zeros(6, np.int64))
    with pytest.raises(OutOfMemoryError, match="CPU work buffer"):
        CpuPlan(graph_of(node), address_of, 2)


# --- order ---


@each_size
def test_calls_run_in_order(use: Use, n_threads: int) -> None:
    # each call checks the words of the call before: words outside 0..limit fail
    words = np.zeros(20 * n_threads, np.int64)
    calls = [
        CpuCall(toy_kernels.test_fail_at, [limit], one_thread=one)
        for limit, one in enumerate((False, True, True, False, False, True, False), 1)
    ]
    node = use(Op.SQR, *calls)(words)
    plan = CpuPlan(graph_of(node, node), address_of, n_threads)
    for _ in range(200):
        words[:] = 0
        with pytest.raises(BackendError, match="index 7 must be at least 0 and below 1"):
            plan.run(cpu_run.pool(n_threads))
        assert (words == 7).all()


def barriers_of(plan: CpuPlan) -> list[int]:
    return [int(b) for b in plan._entries[:, BARRIER]]


def test_calls_of_one_node_wait_unless_thread_0_does_both(use: Use) -> None:
    one, all_threads = (
        CpuCall(toy_kernels.test_fail_at, [9], one_thread=o, work=8) for o in (True, False)
    )
    node = use(Op.SQR, one, one, all_threads, all_threads, one)(np.zeros(4, np.int64))
    plan = CpuPlan(graph_of(node, node), address_of, 2)
    assert barriers_of(plan) == [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]
    assert barriers_of(CpuPlan(graph_of(node, node), address_of, 1)) == [0] * 10


FILL = CpuCall(toy_kernels.test_fill)


def filled(*sources: Tensor, over: Tensor | None = None, shift: int = 0, op: Op = Op.SQR) -> Tensor:
    """A node of four words, in its own memory or over another tensor."""
    node = Tensor(GGMLType.I64, (4,), op=op, src=sources)
    memory = np.zeros(64 + 32, np.uint8)
    node.buffer, node.offset = (memory, 32) if over is None else (over.buffer, over.offset + shift)
    return node


def test_independent_calls_need_no_barrier(use: Use) -> None:
    use(Op.SQR, FILL)
    x = filled()
    q, k, v = (filled(x) for _ in range(3))
    nodes = [x, q, k, v, filled(q), filled(k), filled(v, k), filled(x)]
    assert barriers_of(CpuPlan(graph_of(*nodes), address_of, 2)) == [0, 1, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("shift", [-24, 0, 24])
def test_calls_that_use_the_same_memory_wait(use: Use, shift: int) -> None:
    use(Op.SQR, FILL)
    x, y = filled(), filled()
    for nodes in (
        [filled(over=x), filled(over=x, shift=shift)],  # written twice
        [filled(x), filled(y, over=x, shift=shift)],  # read, then written
        [x, filled(filled(over=x, shift=shift))],  # written, then read
    ):
        assert barriers_of(CpuPlan(graph_of(*nodes), address_of, 2)) == [0, 1]
    for nodes in ([filled(over=x), filled(over=x, shift=32)], [filled(over=x, shift=-32), x]):
        assert barriers_of(CpuPlan(graph_of(*nodes), address_of, 2)) == [0, 0]


def test_a_recurrence_writes_its_states(use: Use) -> None:
    use(Op.SQR, FILL)
    use(Op.SSM_CONV, FILL)
    x, states = filled(), filled()
    recurrence = filled(x, x, states, op=Op.SSM_CONV)  # its source 2
    for other in (filled(states), filled(over=states)):
        nodes = [recurrence, other]
        assert barriers_of(CpuPlan(graph_of(*nodes), address_of, 2)) == [0, 1]
        assert barriers_of(CpuPlan(graph_of(*reversed(nodes)), address_of, 2)) == [0, 1]
    assert barriers_of(CpuPlan(graph_of(recurrence, filled(x)), address_of, 2)) == [0, 0]


def test_calls_that_use_shared_scratch_memory_wait(use: Use) -> None:
    use(Op.SQR, FILL._replace(scratch=8, work=8))
    use(Op.SQRT, FILL._replace(work=8))
    nodes = [filled(), filled(), filled(op=Op.SQRT), filled(op=Op.SQRT), filled()]
    assert barriers_of(CpuPlan(graph_of(*nodes), address_of, 2)) == [0, 1, 0, 0, 1]


def test_a_barrier_covers_all_earlier_calls(use: Use) -> None:
    use(Op.SQR, FILL)
    use(Op.SQRT, FILL._replace(one_thread=True))
    x = filled()
    alone = filled(x, op=Op.SQRT)
    # one barrier for x, one for readers of `alone` on other threads; the last two need no other
    nodes = [x, alone, filled(alone, op=Op.SQRT), filled(alone), filled(x), filled(alone)]
    assert barriers_of(CpuPlan(graph_of(*nodes), address_of, 2)) == [0, 1, 0, 1, 0, 0]


def test_calls_that_name_their_tensors(use: Use) -> None:
    x, y, extra = filled(), filled(), filled()
    use(Op.SQR, FILL._replace(tensors=(y, extra, x), n_written=2))
    use(Op.SQRT, FILL)
    nodes = [y, filled(extra, op=Op.SQRT), filled(x, op=Op.SQRT), filled(over=x, op=Op.SQRT)]
    plan = CpuPlan(graph_of(*nodes), address_of, 2)
    assert barriers_of(plan) == [0, 1, 0, 1]
    assert plan._blocks[0][[0, 9, 18]].tolist() == [address_of(t, t) for t in (y, extra, x)]


def test_leafs_views_and_empty_tensors_need_no_call() -> None:
    x = Tensor(GGMLType.F32, (4, 4))
    empty = ops.sqr(Tensor(GGMLType.F32, (4, 0)))
    for node in (x, ops.transpose(x), ops.reshape(x, [16]), empty):
        assert KERNELS.calls_of(node) == ()
    plan = run([x, ops.transpose(x), empty], 2)
    assert plan.steps == []


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_a_plan_runs_on_its_number_of_threads(use: Use, n_threads: int) -> None:
    places = np.full((3, 3), -1)
    node = use(Op.SQR, CpuCall(toy_kernels.test_tell_work, work=8))(places.reshape(-1))
    plan = CpuPlan(graph_of(node), address_of, n_threads)
    for _ in range(20):
        plan.run(cpu_run.pool(3))
    assert places[:, 0].tolist() == [0, 1, 2][:n_threads] + [-1] * (3 - n_threads)
    with pytest.raises(AssertionError, match="3 threads, of 2"):
        CpuPlan(graph_of(node), address_of, 3).run(cpu_run.pool(2))


# --- errors of kernels ---


def test_a_plan_of_few_rows_wakes_no_other_thread() -> None:
    """A GPU's step has such a plan: the embedding of a token. Waking 15 threads took 1 ms."""
    for n_rows, n_threads in ((1, 1), (100, 8)):
        rows = ops.get_rows(leaf(np.zeros((3, 4096), np.float32)), ids([0] * n_rows))
        locate(rows)
        assert CpuPlan(graph_of(rows), address_of, 8).n_threads == n_threads


@each_size
def test_a_kernel_s_error_is_raised_once(use: Use, n_threads: int) -> None:
    words = np.arange(100)
    node = use(Op.SQR, CpuCall(toy_kernels.test_fail_at, [90]))(words)
    plan = CpuPlan(graph_of(node), address_of, n_threads)
    pool = cpu_run.pool(n_threads)
    for i in range(5):
        words[:] = np.arange(100)
        words[17] = -1 - i
        words[90:] = 0
        with pytest.raises(BackendError, match=rf"sqr.*index {-1 - i} must .* below 90"):
            plan.run(pool)
        words[:] = 0
        plan.run(pool)  # works again
        assert (words == 1).all()


@each_size
def test_an_error_of_many_threads_names_one_bad_index(use: Use, n_threads: int) -> None:
    words = np.arange(1000, 1100)
    plan = CpuPlan(
        graph_of(use(Op.SQR, CpuCall(toy_kernels.test_fail_at, [7]))(words)), address_of, n_threads
    )
    for _ in range(20):
        with pytest.raises(BackendError, match=r"index 10\d\d must be at least 0 and below 7"):
            plan.run(cpu_run.pool(n_threads))


def test_the_first_node_that_fails_is_named(use: Use) -> None:
    bad, good = np.array([5, 99]), np.array([5, 6])
    fail = toy_kernels.test_fail_at
    nodes = [
        use(Op.LOG, CpuCall(fail, [10]))(good),
        use(Op.SQR, CpuCall(fail, [10]))(bad),
        use(Op.SQRT, CpuCall(fail, [3]))(bad),
    ]
    with pytest.raises(BackendError, match=r"sqr .*index 99 must .* below 10"):
        run(nodes, 2)
    assert good.tolist() == [6, 7]


# --- prepared sources ---


def doubled(source: Tensor, form: object = "doubled", size: int = 32) -> PreparedSource[CpuCall]:
    return PreparedSource(source, form, size, [CpuCall(toy_kernels.test_double)])


READERS: dict[Tensor, Sequence[CpuCall]] = {}


def reader(x: Tensor, *made: PreparedSource[CpuCall]) -> Tensor:
    """A node whose words are the sums of its prepared sources."""
    node = filled(x)
    READERS[node] = [CpuCall(toy_kernels.test_take, [len(made)], prepared=made)]
    return node


def source(*values: int) -> Tensor:
    x = filled()
    x.op = Op.NONE
    x.buffer[32:64].view(np.int64)[:] = values
    return x


def values(node: Tensor) -> list[int]:
    return [int(v) for v in node.buffer[node.offset :][:32].view(np.int64)]


def kernels(plan: CpuPlan) -> list[str]:
    return [step.call.kernel.name.removeprefix("test_") for step in plan.steps]


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> None:
    READERS.clear()
    monkeypatch.setitem(OPS.entries, Op.SQR, Implementation(lambda _: True, READERS.__getitem__))


@each_size
@pytest.mark.usefixtures("readers")
def test_a_source_is_prepared_once_for_all_readers(n_threads: int) -> None:
    x, y = source(1, 2, 3, 4), source(10, 20, 30, 40)
    same = Tensor(GGMLType.I64, (4,), view_src=x)  # another tensor of the same memory
    same.buffer, same.offset = x.buffer, x.offset
    nodes = [reader(x, doubled(x)), reader(x, doubled(x)), reader(same, doubled(same))]
    nodes += [reader(y, doubled(y)), reader(x, doubled(x))]
    plan = run(nodes, n_threads)
    assert kernels(plan) == ["double", "take", "take", "take", "double", "take", "take"]
    assert [values(node)[0] for node in nodes] == [2, 2, 2, 20, 2]
    assert values(nodes[3]) == [20, 40, 60, 80]
    # prepared, then read; the second is prepared in another place while the first is read
    waits = [0, 1, 0, 0, 0, 1, 0] if n_threads > 1 else [0] * 7
    assert barriers_of(plan) == waits


@pytest.mark.usefixtures("readers")
def test_the_least_recently_used_prepared_source_is_evicted() -> None:
    x, y, z = source(1, 2, 3, 4), source(10, 20, 30, 40), source(5, 5, 5, 5)
    nodes = [reader(t, doubled(t)) for t in (x, y, x, z, x, y)]
    plan = run(nodes, 2)
    assert [values(node)[0] for node in nodes] == [2, 20, 2, 10, 2, 20]
    made = [s.tensors[1] for s in plan.steps if s.call.kernel is toy_kernels.test_double]
    assert made == [x, y, z, y]


@pytest.mark.usefixtures("readers")
def test_another_form_or_shape_is_prepared_again() -> None:
    x = source(1, 2, 3, 4)
    half = Tensor(GGMLType.I64, (2,), view_src=x, nb=x.nb)
    half.buffer, half.offset = x.buffer, x.offset
    nodes = [reader(x, doubled(x)), reader(x, doubled(x, "other")), reader(half, doubled(half))]
    plan = run([*nodes, nodes[1]], 2)
    assert kernels(plan) == ["double", "take"] * 3 + ["take"]


@pytest.mark.usefixtures("readers")
def test_two_sources_for_one_call() -> None:
    x, y, z = source(1, 2, 3, 4), source(10, 20, 30, 40), source(5, 5, 5, 5)
    nodes = [
        reader(x, doubled(x)),
        reader(x, doubled(x, "other"), doubled(x)),
        reader(z, doubled(z)),
    ]
    nodes += [reader(x, doubled(x)), reader(y, doubled(y)), reader(x, doubled(x))]
    plan = run(nodes, 3)
    assert [values(node)[0] for node in nodes] == [2, 4, 10, 2, 20, 2]
    assert kernels(plan)[:4] == ["double", "take", "double", "take"]
    assert kernels(plan)[4:] == ["double", "take", "double", "take", "double", "take", "take"]
    assert plan.work_size == 2 * 64
    three = reader(x, *(doubled(x, form) for form in "abc"))
    with pytest.raises(AssertionError, match="more than 2 prepared sources"):
        CpuPlan(graph_of(three), address_of, 1)


@each_size
@pytest.mark.parametrize("shift", [-24, 0, 24, 32, -32])
@pytest.mark.usefixtures("readers")
def test_a_written_source_is_prepared_again(use: Use, n_threads: int, shift: int) -> None:
    x = source(1, 2, 3, 4)
    use(Op.SQRT, CpuCall(toy_kernels.test_fill, [7]))
    write = filled(over=x, shift=shift, op=Op.SQRT)
    nodes = [reader(x, doubled(x)), write, reader(x, doubled(x))]
    plan = run(nodes, n_threads)
    count = 1 if abs(shift) == 32 else 2
    assert kernels(plan).count("double") == count
    assert values(nodes[2]) == [2 * v for v in values(x)]
    assert values(nodes[0]) == [2, 4, 6, 8]


@pytest.mark.usefixtures("readers")
def test_memory_of_prepared_sources_fits_the_largest() -> None:
    x, y = source(1, 2, 3, 4), source(1, 2, 3, 4)
    nodes = [reader(x, doubled(x)), reader(y, doubled(y, size=1000)), reader(x, doubled(x, 1, 65))]
    nodes.append(reader(y, doubled(y, 1)))  # in the largest one's place
    assert CpuPlan(graph_of(*nodes), address_of, 2).work_size == 128 + 1024
    assert CpuPlan(graph_of(*nodes[:1]), address_of, 2).work_size == 64


# --- tables ---


def test_an_op_is_implemented_once() -> None:
    with pytest.raises(AssertionError, match="ADD is implemented twice"):
        implements(Op.ADD)(lambda node: [])


def test_packed_weights_have_their_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Packed:
        is_packed = True

    class Memory:
        buft = Packed()

    table = OpTable[CpuCall]()
    monkeypatch.setattr("lamella.kernels.cpu.table.PACKED", table)
    calls = [CpuCall(toy_kernels.test_fill)]
    weights, x = Tensor(GGMLType.F32, (4, 4)), Tensor(GGMLType.F32, (4, 2))
    view = ops.view(weights, (4, 2))
    nodes = [ops.mul_mat(weights, x), ops.mul_mat(view, x)]
    assert all(KERNELS.table_of(node) is OPS for node in nodes)
    weights.buffer = Memory()
    compute = CpuCompute(1)
    for node in nodes:
        assert KERNELS.table_of(node) is table
        assert not compute.supports(node)
    table.implements(Op.MUL_MAT, supports=lambda n: n is nodes[0])(lambda n: calls)
    assert [compute.supports(node) for node in nodes] == [True, False]
    assert KERNELS.calls_of(nodes[0]) is calls
    assert not compute.supports(ops.add(weights, weights))


# --- compute: plans over memory ---


def memory_of(_: Tensor, tensor: Tensor) -> Bytes:
    memory: Bytes = tensor.buffer
    return memory


def test_compute_has_one_pool_and_closes_it(use: Use) -> None:
    words = np.zeros(10, np.int64)
    node = use(Op.SQR, CpuCall(toy_kernels.test_fail_at, [100]))(words)
    compute = CpuCompute(3)
    compute.close()
    runs = [compute.compile(graph_of(node), memory_of) for _ in range(2)]
    for i in range(10):
        runs[i % 2]()
    assert (words == 10).all()
    compute.close()
    compute.close()
    with pytest.raises(ClosedError):
        runs[0]()


@pytest.mark.parametrize("offset", [0, 16])
def test_tensors_outside_their_memory_are_refused(use: Use, offset: int) -> None:
    node = use(Op.SQR, CpuCall(toy_kernels.test_fail_at, [100]))(np.zeros(10, np.int64))
    compute = CpuCompute(1)
    for t in (node, node.src[0]):
        t.offset, t.buffer = offset, np.zeros(80 + offset, np.uint8)
    compute.compile(graph_of(node), memory_of)()
    for t in (node, node.src[0]):
        whole, t.buffer = t.buffer, t.buffer[:-1]
        with pytest.raises(TensorAccessError, match=f"leaves its memory of {79 + offset} bytes"):
            compute.compile(graph_of(node), memory_of)
        t.buffer = whole
    compute.compile(graph_of(node), memory_of)()
    compute.close()


def test_a_plan_passes_progress_on(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(plan_module, "load_all", lambda *args: given.append(args))
    echo, fail = toy_kernels.test_echo, toy_kernels.test_fail_at
    node = use(Op.SQR, CpuCall(echo, (fail, 1.0)), CpuCall(fail))(np.zeros(2, np.int64))

    def progress(done: int, total: int, name: str, seconds: float) -> None:
        pass

    CpuPlan(graph_of(node), address_of, 1, progress)
    [(kernels, passed)] = given
    assert list(kernels) == [*POOL_KERNELS, echo, fail, fail]
    assert passed is progress
