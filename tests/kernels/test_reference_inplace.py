"""Ops that may write over a source have the same bits if they do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from reference_run import bits, compute, data, ids, leaf, normal, unary

from lamella.graph import GGMLType, RopeMode, Tensor, UnaryOp, ops
from lamella.graph.op import INPLACE_OPS

Case = Callable[[Tensor], Tensor]

POS = ids([3, 0, 77])
CHOSEN = ids(np.arange(12).reshape(3, 4) % 9)
MASK = leaf(np.triu(np.full((3, 16), -np.inf), 14))

# each makes a node of a (16, 4, 3), F32 unless stated otherwise
CASES: dict[str, Case] = {
    "add": lambda a: ops.add(a, leaf(normal(1, 4, 16, seed=1))),
    "sub": lambda a: ops.sub(a, leaf(normal(3, 1, 1, seed=1))),
    "mul": lambda a: ops.mul(a, leaf(normal(16, seed=1))),
    "div": lambda a: ops.div(a, leaf(normal(3, 4, 16, seed=1))),
    "add_id": lambda a: ops.add_id(
        a, leaf(normal(9, 16, seed=1)), ids(np.arange(12).reshape(3, 4) % 9)
    ),
    "lora_b": lambda a: ops.lora_b(
        ops.reshape(a, (16, 12)), leaf(normal(5, 16, seed=1)), leaf(normal(12, 5, seed=2))
    ),
    "scale": lambda a: ops.scale(a, 0.7, 0.1),
    "sqr": ops.sqr,
    "sqrt": ops.sqrt,
    "log": ops.log,
    "clamp": lambda a: ops.clamp(a, -0.5, 0.5),
    "fill": lambda a: ops.fill(a, 2.0),
    **{f"unary {op.name}": partial(unary, op=op) for op in UnaryOp},
    "rms_norm": lambda a: ops.rms_norm(a, 1e-6),
    "soft_max": lambda a: ops.soft_max(a, scale=2.0),
    "soft_max masked": lambda a: ops.soft_max(ops.reshape(a, (16, 3, 4)), MASK, 1.0, 8.0),
    "diag_mask_inf": lambda a: ops.diag_mask_inf(a, 5),
    "diag_mask_zero": lambda a: ops.diag_mask_zero(a, 5),
    **{
        f"rope {mode.name}": partial(
            lambda a, mode: ops.rope(a, POS, n_dims=12, mode=mode), mode=mode
        )
        for mode in RopeMode
    },
}

TYPED: dict[str, tuple[Case, GGMLType]] = {
    **{name: (case, GGMLType.F32) for name, case in CASES.items()},
    "add F16": (CASES["add"], GGMLType.F16),
    "mul BF16": (CASES["mul"], GGMLType.BF16),
    "rope F16": (CASES["rope NEOX"], GGMLType.F16),
}


def test_every_inplace_op_has_a_case() -> None:
    a = leaf(normal(3, 4, 16))
    assert {case(a).op for case in CASES.values()} == INPLACE_OPS


@pytest.mark.parametrize("name", TYPED)
def test_result_over_the_first_source(name: str) -> None:
    case, type = TYPED[name]
    apart = bits(case(leaf(normal(3, 4, 16), type)))
    a = leaf(normal(3, 4, 16), type)
    over = compute(case(a), over=a)
    assert np.shares_memory(data(over), data(a))
    assert data(over).tobytes() == apart


@pytest.mark.parametrize("build", [ops.add, ops.sub, ops.mul, ops.div])
@pytest.mark.parametrize("which", [0, 1, "both"])
def test_binary_result_over_either_source(
    build: Callable[[Tensor, Tensor], Tensor], which: int | str
) -> None:
    a, b = leaf(normal(3, 4, 16)), leaf(normal(3, 4, 16, seed=1))
    if which == "both":
        b = a
    apart = bits(build(a, b))
    over = a if which != 1 else b
    assert data(compute(build(a, b), over=over)).tobytes() == apart
