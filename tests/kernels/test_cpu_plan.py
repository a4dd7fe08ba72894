"""Plans: the order of calls, what a kernel is given, scratch memory, and errors of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cpu_run
import numpy as np
import pytest
import toy_kernels
from cpu_run import address_of
from toy_kernels import Words

from lamella.alloc.buffer import Bytes
from lamella.base.errors import BackendError, ClosedError, OutOfMemoryError, TensorAccessError
from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.op import Op
from lamella.kernels.cpu import plan as plan_module
from lamella.kernels.cpu.compute import CpuCompute
from lamella.kernels.cpu.params import MAX_PARAMS
from lamella.kernels.cpu.plan import Plan, calls_of
from lamella.kernels.cpu.pool import POOL_KERNELS
from lamella.kernels.cpu.table import TABLE, Call, Implementation, implements

Use = Callable[..., Callable[[Words], Tensor]]

each_size = pytest.mark.parametrize("n_threads", [1, 2, 3, 8])


@pytest.fixture(autouse=True, scope="module")
def _toys() -> None:
    toy_kernels.load()


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Let an op be computed by some calls; gives what makes a node of the op."""

    def use(op: Op, *calls: Call) -> Callable[[Words], Tensor]:
        monkeypatch.setitem(TABLE, op, Implementation(lambda _: True, lambda _: calls))
        return lambda words: node_of(op, words)

    return use


def node_of(op: Op, words: Words) -> Tensor:
    """A node whose source is made of `words`."""
    x = Tensor(GGMLType.I64, (words.size,), name="x")
    x.buffer = words.view(np.uint8)
    node = Tensor(GGMLType.I64, (words.size,), op=op, src=[x], name=op.name.lower())
    node.buffer = np.zeros(words.nbytes, np.uint8)
    return node


def run(nodes: Sequence[Tensor], n_threads: int) -> Plan:
    plan = Plan(nodes, address_of, n_threads)
    plan.run(cpu_run.pool(n_threads))
    return plan


# --- what a kernel gets ---


def test_a_node_s_tensors_and_parameters(use: Use) -> None:
    words = np.zeros(2, np.int64)
    node = use(Op.SQR, Call(toy_kernels.test_echo, (-(2**40), 1.5)))(words)
    run([node], 2)
    assert words.tolist() == [-(2**40), 3]


def test_parameters_that_do_not_fit(use: Use) -> None:
    words = np.zeros(2, np.int64)
    most = use(Op.SQR, Call(toy_kernels.test_echo, range(MAX_PARAMS)))(words)
    Plan([most], address_of, 1)
    one_more = use(Op.SQR, Call(toy_kernels.test_echo, range(MAX_PARAMS + 1)))(words)
    with pytest.raises(AssertionError, match="too many"):
        Plan([one_more], address_of, 1)


@each_size
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_scratch_memory_lies_apart(use: Use, n_threads: int, size: int) -> None:
    places = np.zeros((n_threads, 3), np.int64)
    node = use(Op.SQR, Call(toy_kernels.test_tell_work, work=size, shared=100))(places.reshape(-1))
    plan = run([node], n_threads)
    assert places[:, 0].tolist() == list(range(n_threads))
    assert (places[:, 1:] % 64 == 0).all()
    assert len(set(places[:, 2])) == 1, "all see the same shared memory"
    shared, own = places[0, 2], np.sort(places[:, 1])
    assert (np.diff(own) >= size).all()
    assert own[0] - shared >= 100
    assert plan.work_size >= own[-1] + size - shared


@each_size
def test_scratch_memory_lasts_as_long_as_a_node(use: Use, n_threads: int) -> None:
    found = np.zeros(n_threads, np.int64)
    n_words = 50
    put = Call(toy_kernels.test_put_work, [n_words], work=8 * n_words, shared=8)
    node = use(Op.SQR, put, put._replace(kernel=toy_kernels.test_get_work))(found)
    for _ in range(50):
        found[:] = 0
        run([node], n_threads)
        assert found.tolist() == [1000 + n_words] * n_threads


def test_scratch_memory_is_for_the_greediest_call(use: Use) -> None:
    words = np.zeros(6, np.int64)
    tell = toy_kernels.test_tell_work
    small = use(Op.SQR, Call(tell, work=100))(words)
    large = use(Op.SQRT, Call(tell, shared=1000), Call(tell, work=300, shared=10))(words)
    none = use(Op.LOG, Call(tell))(words)
    assert Plan([none], address_of, 2).work_size == 0
    assert Plan([small], address_of, 2).work_size == 2 * 128
    assert Plan([small, large, none], address_of, 2).work_size == 1024 + 2 * 320


def test_more_scratch_memory_than_there_is(use: Use) -> None:
    node = use(Op.SQR, Call(toy_kernels.test_tell_work, work=2**61))(np.zeros(6, np.int64))
    with pytest.raises(OutOfMemoryError, match="CPU work buffer"):
        Plan([node], address_of, 2)


# --- order ---


@each_size
def test_calls_run_in_order(use: Use, n_threads: int) -> None:
    # each checks what the one before wrote: words outside 0..limit fail
    words = np.zeros(20 * n_threads, np.int64)
    calls = [
        Call(toy_kernels.test_fail_at, [limit], one_thread=one)
        for limit, one in enumerate((False, True, True, False, False, True, False), 1)
    ]
    node = use(Op.SQR, *calls)(words)
    plan = Plan([node, node], address_of, n_threads)
    for _ in range(200):
        words[:] = 0
        with pytest.raises(BackendError, match="index 7 must be at least 0 and below 1"):
            plan.run(cpu_run.pool(n_threads))
        assert (words == 7).all()


def test_only_calls_of_one_thread_in_a_row_go_without_a_barrier(use: Use) -> None:
    one, all_threads = (
        Call(toy_kernels.test_fail_at, [9], one_thread=o, work=8) for o in (True, False)
    )
    node = use(Op.SQR, one, one, all_threads, all_threads, one)(np.zeros(4, np.int64))
    plan = Plan([node, node], address_of, 2)
    assert plan._entries[:, 3].tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]


def test_what_there_is_nothing_to_compute_of() -> None:
    x = Tensor(GGMLType.F32, (4, 4))
    empty = ops.sqr(Tensor(GGMLType.F32, (4, 0)))
    for node in (x, ops.transpose(x), ops.reshape(x, [16]), empty):
        assert calls_of(node) == ()
    plan = run([x, ops.transpose(x), empty], 2)
    assert plan.calls == []


def test_a_plan_runs_on_as_many_threads_as_it_is_for(use: Use) -> None:
    node = use(Op.SQR, Call(toy_kernels.test_tell_work, work=8))(np.zeros(6, np.int64))
    with pytest.raises(AssertionError, match="3 threads, not 2"):
        Plan([node], address_of, 2).run(cpu_run.pool(3))


# --- errors of kernels ---


@each_size
def test_a_kernel_s_error_is_raised_once(use: Use, n_threads: int) -> None:
    words = np.arange(100)
    node = use(Op.SQR, Call(toy_kernels.test_fail_at, [90]))(words)
    plan = Plan([node], address_of, n_threads)
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
    plan = Plan([use(Op.SQR, Call(toy_kernels.test_fail_at, [7]))(words)], address_of, n_threads)
    for _ in range(20):
        with pytest.raises(BackendError, match=r"index 10\d\d must be at least 0 and below 7"):
            plan.run(cpu_run.pool(n_threads))


def test_the_first_node_that_fails_is_named(use: Use) -> None:
    bad, good = np.array([5, 99]), np.array([5, 6])
    fail = toy_kernels.test_fail_at
    nodes = [
        use(Op.LOG, Call(fail, [10]))(good),
        use(Op.SQR, Call(fail, [10]))(bad),
        use(Op.SQRT, Call(fail, [3]))(bad),
    ]
    with pytest.raises(BackendError, match=r"sqr .*index 99 must .* below 10"):
        run(nodes, 2)
    assert good.tolist() == [6, 7]


def test_an_op_is_implemented_once() -> None:
    with pytest.raises(AssertionError, match="ADD is implemented twice"):
        implements(Op.ADD)(lambda node: [])


# --- compute: plans over memory ---


def memory_of(_: Tensor, tensor: Tensor) -> Bytes:
    memory: Bytes = tensor.buffer
    return memory


def test_compute_keeps_one_pool_and_ends_it(use: Use) -> None:
    words = np.zeros(10, np.int64)
    node = use(Op.SQR, Call(toy_kernels.test_fail_at, [100]))(words)
    compute = CpuCompute(3)
    compute.close()
    runs = [compute.compile([node], memory_of) for _ in range(2)]
    for i in range(10):
        runs[i % 2]()
    assert (words == 10).all()
    compute.close()
    compute.close()
    with pytest.raises(ClosedError):
        runs[0]()


@pytest.mark.parametrize("offset", [0, 16])
def test_tensors_outside_their_memory_are_refused(use: Use, offset: int) -> None:
    node = use(Op.SQR, Call(toy_kernels.test_fail_at, [100]))(np.zeros(10, np.int64))
    compute = CpuCompute(1)
    for t in (node, node.src[0]):
        t.offset, t.buffer = offset, np.zeros(80 + offset, np.uint8)
    compute.compile([node], memory_of)()
    for t in (node, node.src[0]):
        whole, t.buffer = t.buffer, t.buffer[:-1]
        with pytest.raises(TensorAccessError, match=f"leaves its memory of {79 + offset} bytes"):
            compute.compile([node], memory_of)
        t.buffer = whole
    compute.compile([node], memory_of)()
    compute.close()


def test_progress_is_told_of_a_plan_s_kernels(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(plan_module, "load_all", lambda *args: given.append(args))
    echo, fail = toy_kernels.test_echo, toy_kernels.test_fail_at
    node = use(Op.SQR, Call(echo, (fail, 1.0)), Call(fail))(np.zeros(2, np.int64))

    def progress(done: int, total: int, name: str, seconds: float) -> None:
        pass

    Plan([node], address_of, 1, progress)
    [(kernels, told)] = given
    assert list(kernels) == [*POOL_KERNELS, echo, fail, fail]
    assert told is progress
