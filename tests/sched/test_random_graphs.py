"""The scheduler on random graphs: live tensors do not overlap, and every machine computes the same
bits as a single backend."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import pytest
from machines import MACHINES, MakeDevices, SimMachine, gpu_cpu, running, shared_memory, single
from random_graphs import Model, RandomGraph

from lamella.graph import OUTPUT, Op, Tensor
from lamella.graph.op import VIEW_OPS
from lamella.sched import ScheduledGraph, Scheduler

N_RUNS = 5


def compute(
    machine: SimMachine, seed: int, *, parallel: bool = False, op_offload: bool = True
) -> list[list[bytes]]:
    """Outputs of several runs, started one after the other without waiting."""
    scheduler = Scheduler(machine.backends, parallel=parallel, op_offload=op_offload)
    model = Model(seed, machine.homes)
    cached: dict[int, tuple[RandomGraph, ScheduledGraph]] = {}
    results: list[list[bytes]] = []
    for run in range(N_RUNS):
        # as many graphs in flight as there are copies, each computed again later
        if run % scheduler.n_copies not in cached:
            made = RandomGraph(model, seed)
            scheduler.reset()
            assign_some_by_hand(scheduler, made, random.Random(seed))
            cached[run % scheduler.n_copies] = made, scheduler.alloc_graph(made.graph)
            check_memory(cached[run % scheduler.n_copies][1])
        made, scheduled = cached[run % scheduler.n_copies]
        made.write_inputs(run)
        scheduler.graph_compute_async(scheduled)
        if parallel:
            made.write_inputs(1000 + run)  # allowed: the scheduler has read what it needs
        if not parallel or run == N_RUNS - 1:
            scheduler.synchronize()
            results.append(made.read_outputs())
    scheduler.free()
    return results


def assign_some_by_hand(scheduler: Scheduler, made: RandomGraph, rng: random.Random) -> None:
    for node in made.graph.nodes:
        if rng.random() < 0.05 and node.view_src is None:
            backend = rng.choice(scheduler.backends)
            if backend.supports_op(node):
                scheduler.set_tensor_backend(node, backend)


@cache
def bits_of_one_backend(seed: int) -> list[list[bytes]]:
    with running(single) as one:
        return compute(one, seed)


@pytest.mark.parametrize(
    ("make", "parallel", "op_offload"),
    [  # --full: each machine with both
        pytest.param(make, parallel, op_offload, marks=() if i % 3 == 0 else pytest.mark.full)
        for i, (make, parallel, op_offload) in enumerate(
            product(MACHINES, [False, True], [False, True])
        )
    ],
)
def test_bits_equal_those_of_one_backend(
    make: MakeDevices, parallel: bool, op_offload: bool
) -> None:
    for seed in range(6):
        expected = bits_of_one_backend(seed)
        with running(make, seed) as machine:
            got = compute(machine, seed, parallel=parallel, op_offload=op_offload)
        assert got[-1] == expected[-1], seed
        assert parallel or got == expected, seed


@pytest.mark.parametrize("make", [gpu_cpu, shared_memory])
def test_two_cached_graphs_take_turns(make: MakeDevices) -> None:
    """Graphs of different shapes are in flight at once over one scheduler."""
    with running(make, seed=3) as machine:
        for parallel in (False, True):
            scheduler = Scheduler(machine.backends, parallel=parallel)
            model = Model(1, machine.homes)
            graphs = [RandomGraph(model, seed, n) for seed, n in ((5, 40), (6, 12), (7, 25))]
            for made in graphs:
                scheduler.reserve(made.graph)
            cached = [(made, scheduler.alloc_graph(made.graph)) for made in graphs]
            alone = [compute_alone(scheduler, *pair, step=9) for pair in cached]
            for made, scheduled in [*cached, *reversed(cached)]:
                assert scheduler.is_current(scheduled)
                scheduler.wait_inputs(scheduled)
                made.write_inputs(9)
                scheduler.graph_compute_async(scheduled)
            # the caches hold step 9's rows, so every graph gives the same result as alone
            assert [compute_alone(scheduler, *pair, step=9) for pair in cached] == alone
            scheduler.free()


def compute_alone(
    scheduler: Scheduler, made: RandomGraph, scheduled: ScheduledGraph, step: int
) -> list[bytes]:
    for _ in range(2):  # the second time, the caches already hold this step's rows
        made.write_inputs(step)
        scheduler.graph_compute(scheduled)
    return made.read_outputs()


# --- memory ---


def check_memory(scheduled: ScheduledGraph) -> None:
    """Live tensors do not overlap, all are aligned and in their buffers, views in their sources."""
    order = scheduled.order.graph
    born = dict.fromkeys(order.leafs, -1) | {t: i for i, t in enumerate(order.nodes)}
    last_use: dict[Tensor, int] = {}
    for i, node in enumerate(order.nodes):
        for src in node.src:
            last_use[src] = last_use[src.root] = i
        last_use[node.root] = max(last_use.get(node.root, i), i)
    inplace = {order.nodes[i]: order.nodes[i].src[j] for i, j in scheduled.layout.inplace}
    live: list[tuple[int, int, Tensor]] = []
    for t in {*order.leafs, *order.nodes}:
        check_place(t)
        if t.view_src is None and t.nbytes:
            end = len(order.nodes) if t.flags & OUTPUT else last_use.get(t, born[t])
            live.append((born[t], end, t))
    live.sort(key=lambda entry: entry[0])
    for n, (born_a, end_a, a) in enumerate(live):
        for born_b, _, b in live[n + 1 :]:
            if born_b > end_a:
                break
            taken_over = inplace.get(b) is a and end_a == born_b
            assert taken_over or not overlap(a, b), f"{a} {born_a}..{end_a} and {b} {born_b}"


def check_place(t: Tensor) -> None:
    assert t.buffer is not None
    if t.view_src is not None:
        assert t.buffer is t.view_src.buffer
        assert t.view_src.offset <= t.offset
        assert t.offset + t.nbytes <= t.view_src.offset + t.view_src.nbytes
    else:
        assert t.offset % t.buffer.buft.alignment == 0
        assert 0 <= t.offset <= t.offset + t.nbytes <= t.buffer.size


def overlap(a: Tensor, b: Tensor) -> bool:
    return (
        a.buffer is b.buffer and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
    )


def test_the_random_graphs_cover_enough() -> None:
    """All steps occur, there are several splits and copies, and nodes work in place."""
    seen: set[Op] = set()
    n_splits, n_inplace = [], 0
    with running(gpu_cpu) as machine:
        for seed in range(6):
            scheduler = Scheduler(machine.backends)
            made = RandomGraph(Model(seed, machine.homes), seed)
            scheduled = scheduler.alloc_graph(made.graph)
            seen |= {node.op for node in made.graph.nodes if node.op not in VIEW_OPS}
            n_splits.append(scheduled.n_splits)
            n_inplace += len(scheduled.layout.inplace)
            scheduler.free()
    assert {Op.FLASH_ATTN_EXT, Op.MUL_MAT_ID, Op.SET_ROWS, Op.CPY, Op.ROPE, Op.ADD} <= seen
    assert max(n_splits) > 8
    assert n_inplace > 20
