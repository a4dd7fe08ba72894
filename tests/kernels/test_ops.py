"""Every op case on every backend: right, within its memory, with the same bits in every batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final

import cpu_run
import cuda_run
import numpy as np
import pytest
import reference_run
from backends import CPU, CUDA, Backend, each_backend
from cuda_cases import (
    all_cases,
    calls_of,
    is_further,
    kernels_in_use,
    limit_of,
    model_graphs,
    parts_of,
    supported_cases,
)
from cuda_grid import has_compiler
from cuda_grid_compiler import SRC
from op_case import OpCase
from op_cases import op_cases
from reference_run import Array, relative_error, values_of, with_prepared

from lamella.base.errors import BackendError
from lamella.graph import GGMLType
from lamella.graph.op import INPLACE_OPS, VIEW_OPS, Op
from lamella.graph.tensor import Tensor, same_layout
from lamella.kernels import reference
from lamella.kernels.cpu.compiler.jit import KERNELS
from lamella.kernels.cpu.kernel_set import KERNELS as CPU_KERNELS
from lamella.kernels.cpu.ops.fused_norms import ADD_NORM_MUL, NORM_MUL
from lamella.kernels.cpu.ops.fused_rope import ROPE_SET_ROWS
from lamella.kernels.cpu.packed.activations import tile_pairs
from lamella.kernels.cpu.packed.biased import BIASED_ROW, BIASED_ROWS
from lamella.kernels.cpu.packed.gate_up import GATED_ROWS, mul_mat_gated_packed
from lamella.kernels.cpu.packed.moves import PACK_ROWS, UNPACK_ROWS
from lamella.kernels.cpu.simd.bf16_dots import HAS_DOTS
from lamella.kernels.cpu.table import OPS as CPU_OPS
from lamella.kernels.cpu.table import PACKED
from lamella.kernels.cuda.table import OPS as CUDA_OPS
from lamella.kernels.cuda.table import SIZED_OPS

Compute = Callable[[Tensor], Array]

OPS: Final = sorted(CPU_OPS.entries)
# ops whose cases have no tokens: a row depends on its index
WITHOUT_TOKENS: Final = {Op.DIAG_MASK_INF, Op.DIAG_MASK_ZERO, Op.SET_ROWS, Op.CONCAT}


def each_op(ops: Iterable[Op]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("op", sorted(ops), ids=lambda op: op.name.lower())


def cases_on(on: Backend) -> Sequence[OpCase]:
    return op_cases() if on is CPU else supported_cases()


@cache
def cases_by_op(on: Backend, full: bool) -> Mapping[Op, Sequence[OpCase]]:
    # built on first use: pytest's collection must not build the data of all cases
    found: dict[Op, list[OpCase]] = {op: [] for op in OPS}
    for case in cases_on(on):
        if full or (case.n_tokens < 8 or not case.timed if on is CPU else not is_further(case)):
            found[case.node().op].append(case)
    return found


@pytest.fixture
def cases(on: Backend, op: Op, pytestconfig: pytest.Config) -> Sequence[OpCase]:
    """The cases of an op on a backend. --full adds large ones, and more of the emulated GPU."""
    found = cases_by_op(on, pytestconfig.getoption("--full"))[op]
    assert found
    return found


@pytest.fixture
def token_cases(cases: Sequence[OpCase]) -> list[OpCase]:
    found = [case for case in cases if case.axis is not None and not case.timed]
    assert found
    return found


@contextmanager
def naming(case: OpCase) -> Iterator[None]:
    """Add the case's name to errors."""
    try:
        yield
    except Exception as e:
        e.add_note(f"of the case {case.name!r}")
        raise


@pytest.fixture(scope="module", autouse=True)
def _compiled(request: pytest.FixtureRequest) -> None:
    """Compile several kernels of the emulated GPU at a time, if most are needed."""
    here = [item for item in request.session.items if item.path == request.path]
    if has_compiler() and len(here) > len(OPS):
        by_op = cases_by_op(CUDA, request.config.getoption("--full"))
        cases = (case for cases in by_op.values() for case in cases)
        called = {c.kernel for case in cases for c in calls_of(case.node())}
        with suppress(BackendError):  # the tests of a kernel report that it does not compile
            cuda_run.machine().library.load(called)


# --- results and bits ---


@each_backend
@each_op(OPS)
def test_the_result_is_the_reference_s(on: Backend, cases: Sequence[OpCase]) -> None:
    for case in cases:
        with naming(case):
            expected = reference_run.run(case.node())
            limit = limit_of(case) if on is CUDA else case.limit
            node = case.node()
            bits = on.computed(node)
            assert relative_error(values_of(node), expected) <= limit
            other = on.other_ways(node)[0](case.node())
            assert other.tobytes() == bits, "bits depend on the threads' order or number"


def token_bits(case: OpCase, tokens: Sequence[int], compute: Compute) -> Array:
    """The result's bytes; the first axis is the tokens."""
    assert case.axis is not None
    array = compute(case.node(tokens))
    return np.moveaxis(array, array.ndim - 1 - case.axis, 0).copy().view(np.uint8)


@each_backend
@each_op(set(OPS) - WITHOUT_TOKENS)
def test_bits_do_not_depend_on_the_batch(
    on: Backend, token_cases: list[OpCase], pytestconfig: pytest.Config
) -> None:
    # the emulated GPU is slow
    n_alone = 5 if on is CPU or pytestconfig.getoption("--full") else 2
    for case in token_cases:
        with naming(case):
            whole = token_bits(case, range(case.n_tokens), on.compute)
            singles = [[t] for t in range(n_alone)]
            for part in [*singles, *parts_of(case.n_tokens)]:
                assert (token_bits(case, part, on.compute) == whole[part]).all(), part


THREADS: Final[Mapping[Backend, Sequence[Compute]]] = {
    CPU: [
        lambda node: cpu_run.compute(node, 2),
        lambda node: cpu_run.compute(node, 3),
        lambda node: cpu_run.compute(node, 8),
        lambda node: cpu_run.compute(node, shift=4),
        lambda node: cpu_run.compute(node, shift=36),
    ],
    CUDA: [
        lambda node: cuda_run.compute(node, shift=4),
        lambda node: cuda_run.compute(node, shift=36),
    ],
}


@each_backend
@each_op(set(OPS) - WITHOUT_TOKENS)
def test_bits_do_not_depend_on_threads_or_places(on: Backend, token_cases: list[OpCase]) -> None:
    for case in token_cases:
        tokens = range(case.n_tokens if on is CPU else 3)
        with naming(case):
            whole = token_bits(case, tokens, on.compute)
            for i, compute in enumerate(THREADS[on]):
                assert (token_bits(case, tokens, compute) == whole).all(), i


@each_backend
@each_op(INPLACE_OPS & set(OPS))
def test_in_place_gives_the_same_bits(on: Backend, cases: Sequence[OpCase]) -> None:
    for case in (case for case in cases if not case.timed):
        node = case.node()
        apart = on.computed(node)
        for i in [i for i, s in enumerate(node.src) if same_layout(s, node)][:2]:
            again = case.node()
            cpu_run.prepare(again)
            with naming(case):
                assert on.compute(again, over=again.src[i]).tobytes() == apart, i


# --- supported ops ---


@pytest.mark.parametrize(
    "entries", [{*CPU_OPS.entries}, {*CUDA_OPS.entries, *SIZED_OPS}], ids=["cpu", "cuda"]
)
def test_backends_have_every_op_the_reference_has(entries: set[Op]) -> None:
    assert entries == set(reference.KERNELS)
    assert not entries & {*VIEW_OPS, Op.NONE}


def test_every_cpu_op_and_kernel_has_a_case() -> None:
    nodes = [case.node() for case in op_cases()]
    assert all(CPU.supports(node) and reference.supports_op(node) for node in nodes)
    calls = with_prepared(call for node in nodes for call in CPU_KERNELS.calls_of(node))
    called = {k.name for call in calls for k in call.kernels()}
    assert {node.op for node in nodes} >= set(CPU_OPS.entries)
    packed = {node.op for node in nodes if CPU_KERNELS.table_of(node) is PACKED}
    assert packed >= set(PACKED.entries)
    unused = set(KERNELS) - called - {"pool_run", "pool_run_timed", "pool_worker", "pool_stop"}
    # kernels of chains: tests/kernels/test_fusion.py, test_cpu_fusion.py
    chains = (NORM_MUL, ADD_NORM_MUL, ROPE_SET_ROWS)
    unused -= {k.name for kernels in chains for k in kernels.values()}
    # kernels of packed weights: tests/kernels/test_cpu_packed.py, test_cpu_packed_buffer.py
    unused -= {k.name for k in (*GATED_ROWS.values(), mul_mat_gated_packed)}
    unused -= {k.name for k in (*BIASED_ROWS.values(), BIASED_ROW)}
    unused -= {PACK_ROWS.name, UNPACK_ROWS.name}
    unused -= set() if HAS_DOTS else {tile_pairs.name}  # of products that other processors have
    # kernels of samplers: tests/model/test_sampling_native.py; of vocabularies: test_vocab_*.py
    others = ("test_", "sample_", "vocab_", "ceiling_")
    assert not {name for name in unused if not name.startswith(others)}


def test_every_cuda_kernel_has_a_case() -> None:
    """Models call the kernels of chains."""
    for path in SRC.glob("*.cu"):
        named = set(re.findall(r"^(?:MERGING_)?KERNEL\((\w+),", path.read_text(), re.MULTILINE))
        called = {k.name for k in kernels_in_use() if k.source.file == path.name}
        assert called == named, path.name


def test_all_cases_except_rare_types_are_supported() -> None:
    missing = [case.node() for case in all_cases() if case not in cases_on(CUDA)]
    weights = {Op.MUL_MAT, Op.MUL_MAT_ID, Op.GET_ROWS}
    assert {node.src[0].type for node in missing if node.op in weights} <= {GGMLType.Q1_0}
    assert [node for node in missing if node.op not in weights] == []


def test_models_need_no_device_beside_a_gpu() -> None:
    for name, graph in model_graphs():
        nodes = [n for n in graph.nodes if n.op not in VIEW_OPS]
        assert {Op.GET_ROWS, Op.MUL_MAT, Op.ROPE, Op.FLASH_ATTN_EXT} <= {n.op for n in nodes}
        unsupported = {n.op.name for n in nodes if not CUDA.supports(n)}
        assert not unsupported, name
