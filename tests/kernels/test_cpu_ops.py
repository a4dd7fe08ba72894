"""Every op case on the CPU: right, within its memory, and the same bits in every batch."""

from __future__ import annotations

import cpu_run
import numpy as np
import pytest
import reference_run
from op_cases import OpCase, op_cases
from reference_run import Array, values_of, with_prepared

from lamella.graph.op import INPLACE_OPS, VIEW_OPS, Op
from lamella.graph.tensor import same_layout
from lamella.kernels import reference
from lamella.kernels.cpu.compiler.jit import KERNELS
from lamella.kernels.cpu.kernel_set import KERNELS as CPU_KERNELS
from lamella.kernels.cpu.ops.fused_norms import ADD_NORM_MUL, NORM_MUL
from lamella.kernels.cpu.ops.fused_rope import ROPE_SET_ROWS
from lamella.kernels.cpu.packed.gate_up import GATED_ROWS, mul_mat_gated_packed
from lamella.kernels.cpu.packed.moves import PACK_ROWS, UNPACK_ROWS
from lamella.kernels.cpu.table import OPS, PACKED

CASES = op_cases()
TOKEN_CASES = [case for case in CASES if case.axis is not None and not case.timed]

each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_token_case = pytest.mark.parametrize("case", TOKEN_CASES, ids=str)


def token_bits(case: OpCase, tokens: list[int], n_threads: int = 1, shift: int = 0) -> Array:
    """The result's bytes; the first axis is the tokens."""
    assert case.axis is not None
    array = cpu_run.compute(case.node(tokens), n_threads, shift=shift)
    return np.moveaxis(array, array.ndim - 1 - case.axis, 0).copy().view(np.uint8)


def error(actual: Array, expected: Array) -> float:
    """Mean square error relative to the mean square; infinite where NaN and inf differ."""
    finite = np.isfinite(expected)
    if not np.array_equal(actual[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    difference = np.square(actual[finite] - expected[finite]).sum()
    return float(difference / max(np.square(expected[finite]).sum(), 1e-30))


@each_case
def test_the_result_is_the_reference_s(case: OpCase) -> None:
    expected = reference_run.run(case.node())
    for n_threads in (1, 2):
        node = case.node()
        cpu_run.compute(node, n_threads)
        assert error(values_of(node), expected) <= case.limit


@each_token_case
def test_bits_do_not_depend_on_the_batch(case: OpCase) -> None:
    tokens = list(range(case.n_tokens))
    whole = token_bits(case, tokens)
    for part in (*([t] for t in tokens), [1, 2], [0, 1, 2], [4, 2, 0, 3, 1]):
        assert (token_bits(case, part) == whole[part]).all(), part


@each_token_case
def test_bits_do_not_depend_on_threads_or_places(case: OpCase) -> None:
    tokens = list(range(case.n_tokens))
    whole = token_bits(case, tokens)
    for n_threads in (2, 3, 8):
        assert (token_bits(case, tokens, n_threads) == whole).all(), n_threads
    for shift in (4, 36):
        assert (token_bits(case, tokens, shift=shift) == whole).all(), shift


@pytest.mark.parametrize(
    "case", [c for c in CASES if not c.timed and c.node().op in INPLACE_OPS], ids=str
)
def test_in_place_gives_the_same_bits(case: OpCase) -> None:
    apart = cpu_run.compute(case.node()).tobytes()
    node = case.node()
    cpu_run.prepare(node)
    for i in [i for i, s in enumerate(node.src) if same_layout(s, node)][:2]:
        again = case.node()
        cpu_run.prepare(again)
        assert cpu_run.compute(again, 2, over=again.src[i]).tobytes() == apart


def test_every_op_and_kernel_has_a_case() -> None:
    nodes = [case.node() for case in CASES]
    calls = with_prepared(call for node in nodes for call in CPU_KERNELS.calls_of(node))
    called = {k.name for call in calls for k in call.kernels()}
    assert {node.op for node in nodes} >= set(OPS.entries)
    packed = {node.op for node in nodes if CPU_KERNELS.table_of(node) is PACKED}
    assert packed >= set(PACKED.entries)
    unused = set(KERNELS) - called - {"pool_run", "pool_run_timed", "pool_worker", "pool_stop"}
    # those of chains of ops: tests/kernels/test_cpu_fusion.py
    chains = (NORM_MUL, ADD_NORM_MUL, ROPE_SET_ROWS)
    unused -= {k.name for kernels in chains for k in kernels.values()}
    # and tests/kernels/test_cpu_packed.py, test_cpu_packed_buffer.py
    unused -= {k.name for k in (*GATED_ROWS.values(), mul_mat_gated_packed)}
    unused -= {PACK_ROWS.name, UNPACK_ROWS.name}
    # those of samplers compute no op: tests/model/test_sampling_native.py
    assert not {name for name in unused if not name.startswith(("test_", "sample_", "ceiling_"))}


def test_the_cpu_has_every_op_the_reference_has() -> None:
    assert set(OPS.entries) == set(reference.KERNELS)
    assert not set(OPS.entries) & {*VIEW_OPS, Op.NONE}


@each_case
def test_what_has_a_case_is_supported(case: OpCase) -> None:
    node = case.node()
    assert CPU_KERNELS.supports(node)
    assert reference.supports_op(node)
