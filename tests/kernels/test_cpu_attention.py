"""Paged attention on the CPU: sizes of heads and pages, and how threads divide the work."""

from __future__ import annotations

import math
from itertools import product

import cpu_run
import numpy as np
import pytest
from attention_run import (
    F16,
    F32,
    N_CELLS,
    Q8_0,
    SEQ,
    Shape,
    bits,
    build,
    check,
    pool,
    table,
    ways,
)
from backends import CPU
from matrix import combinations
from reference_run import data, each_type, graph_of, leaf, values_of

from lamella.graph import GGMLType
from lamella.graph.types import KV_TYPES
from lamella.kernels.cpu.kernel_set import KERNELS
from lamella.kernels.cpu.plan import CpuPlan

# the first and last positions of blocks and of partitions, for each sequence
LONG_POS = [0, 254, 255, 256, 257, 288, 510, 511, 512, 1300, 1535, 1536, 1631]


def test_every_pair_of_types_is_supported() -> None:
    for k, v in product(KV_TYPES, KV_TYPES):
        node = build(Shape(8, 2, type_k=k, type_v=v))
        assert KERNELS.supports(node)
        assert len(KERNELS.calls_of(node)) == 1


@pytest.mark.parametrize(
    ("head_dim", "type"),
    combinations(
        [1, 8, 12, 16, 24, 40, 64, 72, 80, 96, 128, 192, 256, 512], [F16, Q8_0, GGMLType.Q5_1]
    ),
    ids=str,
)
def test_head_dims(head_dim: int, type: GGMLType) -> None:
    n = 32 // math.gcd(head_dim, 32)  # rows are whole blocks, heads need not be
    check(CPU, Shape(n, n, head_dim, head_dim, type, type))
    check(CPU, Shape(2 * n, n, head_dim, 2 * head_dim, type, type))


@each_type(KV_TYPES[4:])
def test_quantized_types(type: GGMLType) -> None:
    # heads of whole blocks, of halves of blocks, and others
    for head_dim in (32, 48, 40):
        n = 32 // math.gcd(head_dim, 32)
        check(CPU, Shape(2 * n, n, head_dim, head_dim, type, type))


@each_type((F32, F16))
@pytest.mark.parametrize("page_size", [1, 4, 16, 32, 64, 128])
def test_page_sizes_give_the_same_bits(page_size: int, type: GGMLType) -> None:
    shape = Shape(4, 2, 16, 16, type, type)
    whole = bits(CPU, build(shape))
    moved = []
    for seed in (1, 2):
        copy = leaf(np.zeros((N_CELLS, 32)), type)
        old = data(pool(32, type, seed))[0, 0].reshape(-1, 32, 32)[table()]
        data(copy)[0, 0].reshape(-1, page_size, 32)[table(page_size)] = old.reshape(
            3, -1, page_size, 32
        )
        moved.append(copy)
    found = check(CPU, shape, k=moved[0], v=moved[1], page_size=page_size)
    assert (found == whole).all()


@each_type((F32, Q8_0))
@pytest.mark.parametrize(("n_head", "n_head_kv"), [(4, 4), (8, 2), (6, 2)])
def test_bits_do_not_depend_on_how_partitions_are_divided(
    type: GGMLType, n_head: int, n_head_kv: int
) -> None:
    shape = Shape(n_head, n_head_kv, 16, 16, type, type)
    seq = [s for s in range(3) for _ in LONG_POS]
    whole = bits(CPU, build(shape, seq, LONG_POS * 3))  # too many tokens to divide
    for n_threads in ways(CPU, build(shape)):
        # one token: divided, if threads cannot share its heads. Two long ones need too many records
        for t in range(0, len(whole), 4):
            alone = build(shape, [seq[t]], [LONG_POS[t % 13]])
            assert (bits(CPU, alone, n_threads) == whole[t]).all(), t
        for chosen in ([12, 25], [12, 11, 10, 9], [3, 2, 14, 27, 1], [8, 21, 34]):
            part = build(shape, [seq[t] for t in chosen], [LONG_POS[t % 13] for t in chosen])
            assert (bits(CPU, part, n_threads) == whole[chosen]).all(), (chosen, n_threads)


def test_partitions_are_divided_only_for_few_tokens_of_long_sequences() -> None:
    shape = Shape(8, 2, 16, 16)
    nodes = {n: build(shape, [0] * n, [9] * n) for n in (1, 16, 17)}
    nodes[0] = build(shape, SEQ[:13], [9] * 13, pages=table()[:, :4])
    records = {n: KERNELS.calls_of(node)[0].scratch > 0 for n, node in nodes.items()}
    assert records == {1: True, 16: True, 17: False, 0: False}


def test_a_window_limits_scratch_memory_and_the_estimate_of_work() -> None:
    shape = Shape(8, 2, 16, 16)
    calls = {n: KERNELS.calls_of(build(shape, [0], [9], n_swa=n))[0] for n in (0, 2, 300, 600)}
    n_bytes = {n: call.scratch for n, call in calls.items()}
    # 1664 positions are seven partitions; a record more for a second sequence. A window of 300 may
    # begin in one, fill the next and end in a third; one of 600 may lie in four
    assert n_bytes[300] * 8 == n_bytes[0] * 3
    assert n_bytes[600] * 8 == n_bytes[0] * 4
    assert [n for n, call in calls.items() if call.one_thread] == [2]


def test_a_plan_may_be_run_again_with_other_positions() -> None:
    shape = Shape(4, 1, 16, 16)
    node = build(shape, [0, 1], [1600, 1100])
    cpu_run.prepare(node)
    plan = CpuPlan(graph_of(node), cpu_run.address_of, 3)
    for two in ([1600, 1100], [7, 513], [1631, 0], [3, 4]):
        data(node.src[5])[...] = two
        data(node.src[7])[...] = np.add(two, 1)
        plan.run(cpu_run.pool(3))
        for t in (0, 1):
            q = leaf(values_of(node.src[0])[0, t : t + 1])
            alone = build(shape, [t], [two[t]], q=q)
            assert (cpu_run.compute(alone)[0, 0] == data(node)[0, t]).all(), two
