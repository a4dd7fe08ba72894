"""Every op case on CUDA kernels, on the emulated GPU: right, within its memory, the same bits in
every batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import cpu_run
import cuda_run
import numpy as np
import pytest
import reference_run
from cuda_cases import (
    all_cases,
    calls_of,
    error,
    kernels_in_use,
    limit_of,
    model_graphs,
    parts_of,
    supported_cases,
)
from cuda_grid import has_compiler, needs_compiler
from cuda_grid_compiler import SRC
from op_cases import OpCase
from reference_run import Array, values_of

from lamella.base.errors import BackendError
from lamella.graph import GGMLType
from lamella.graph.op import INPLACE_OPS, VIEW_OPS, Op
from lamella.graph.tensor import same_layout
from lamella.kernels import reference
from lamella.kernels.cuda.table import OPS

# those that model files mostly have; products of others are left to another device
WEIGHTS: Final = {
    GGMLType[name]
    for name in (
        "F32",
        "F16",
        "BF16",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q4_K",
        "Q5_K",
        "Q6_K",
    )
}
CASES: Final = supported_cases()
TOKEN_CASES: Final = [case for case in CASES if case.axis is not None]
INPLACE_CASES: Final = [case for case in CASES if case.node().op in INPLACE_OPS]

each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_token_case = pytest.mark.parametrize("case", TOKEN_CASES, ids=str)
each_inplace_case = pytest.mark.parametrize("case", INPLACE_CASES, ids=str)


def token_bits(case: OpCase, tokens: Sequence[int], shift: int = 0) -> Array:
    """The result's bytes; the first axis is the tokens."""
    assert case.axis is not None
    array = cuda_run.compute(case.node(tokens), shift=shift)
    return np.moveaxis(array, array.ndim - 1 - case.axis, 0).copy().view(np.uint8)


@pytest.fixture(scope="module", autouse=True)
def _compiled(request: pytest.FixtureRequest) -> None:
    """Several kernels are compiled at a time, if most of them are needed."""
    if has_compiler() and len(request.session.items) >= len(CASES):
        called = {c.kernel for case in CASES for c in calls_of(case.node())}
        with suppress(BackendError):  # tests of the kernel that does not compile say so
            cuda_run.machine().library.load(called)


# --- results and bits ---


@needs_compiler
@each_case
def test_the_result_is_the_reference_s(case: OpCase) -> None:
    expected, limit = reference_run.run(case.node()), limit_of(case)
    bits = []
    for reverse in (False, True):
        node = case.node()
        bits.append(cuda_run.compute(node, reverse=reverse).tobytes())
        assert error(values_of(node), expected) <= limit
    assert bits[0] == bits[1], "bits depend on which threads come first"


@needs_compiler
@each_token_case
def test_bits_do_not_depend_on_the_batch(case: OpCase) -> None:
    whole = token_bits(case, list(range(case.n_tokens)))
    for part in parts_of(case.n_tokens):
        assert (token_bits(case, part) == whole[part]).all(), part


@needs_compiler
@each_token_case
def test_bits_do_not_depend_on_places(case: OpCase) -> None:
    tokens = [0, 1, 2]
    whole = token_bits(case, tokens)
    for shift in (4, 36):
        assert (token_bits(case, tokens, shift) == whole).all(), shift


@needs_compiler
@each_inplace_case
def test_in_place_gives_the_same_bits(case: OpCase) -> None:
    node = case.node()
    apart = cuda_run.compute(node).tobytes()
    for i in [i for i, s in enumerate(node.src) if same_layout(s, node)][:2]:
        again = case.node()
        cpu_run.prepare(again)
        assert cuda_run.compute(again, over=again.src[i]).tobytes() == apart


# --- what is supported ---


def test_models_need_no_other_device() -> None:
    for name, graph in model_graphs():
        nodes = [n for n in graph.nodes if n.op not in VIEW_OPS]
        assert {Op.GET_ROWS, Op.MUL_MAT, Op.ROPE, Op.FLASH_ATTN_EXT} <= {n.op for n in nodes}
        unsupported = {n.op.name for n in nodes if not cuda_run.supports(n)}
        assert not unsupported, name


def test_all_ops_are_there() -> None:
    assert set(OPS.entries) == set(reference.KERNELS)
    assert not set(OPS.entries) & {*VIEW_OPS, Op.NONE}


def test_all_cases_are_supported_but_those_of_rare_weights() -> None:
    missing = [case.node() for case in all_cases() if case not in CASES]
    assert {node.op for node in missing} <= {Op.MUL_MAT, Op.MUL_MAT_ID, Op.GET_ROWS}
    assert not {node.src[0].type for node in missing} & WEIGHTS


def test_every_kernel_has_a_case() -> None:
    """Those of chains are called by the models."""
    for path in SRC.glob("*.cu"):
        named = set(re.findall(r"^KERNEL\((\w+),", path.read_text(), re.MULTILINE))
        called = {k.name for k in kernels_in_use() if k.source.file == path.name}
        assert called == named, path.name
