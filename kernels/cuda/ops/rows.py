"""Norms, softmax and sums of rows (src/rows.cu, src/softmax.cu); norms fused with what is around.

A row is shared by as many threads as its length asks for, whatever the number of rows: sums are
taken in an order that depends on the length alone. Tested by tests/kernels/test_cuda_rows.py and
tests/kernels/test_cuda_fusion.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import EpsParams, Op, SoftMaxParams
from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...plan.fusion import AddNormMul, NormMul
from ..params import Param
from ..table import Call, Kernel, Source, fuses, implements
from .elementwise import is_countable

WARP: Final = 32
MAX_THREADS: Final = 1024
HELD: Final = 8  # elements that a thread holds in registers
SMALL_ROWS: Final = 4  # rows of a block, where each is a warp's

ROWS: Final = Source.of("rows.cu")
SOFT_MAX: Final = Source.of("softmax.cu")


def row_threads(n: int) -> int:
    """Threads for a row of `n` elements."""
    threads = WARP
    while threads < MAX_THREADS and threads * HELD < n:
        threads *= 2
    return threads


def _call(
    source: Source,
    name: str,
    rows: Tensor,
    *params: Param,
    tensors: Sequence[Tensor] = (),
    n_written: int = 1,
) -> list[Call]:
    """The call for as many rows, and as long, as those of a tensor."""
    threads, n = row_threads(rows.ne[0]), rows.n_rows
    per_block = SMALL_ROWS if threads == WARP else 1
    return [
        Call(
            Kernel(source, name),
            (-(-n // per_block), 1, 1),
            threads * per_block,
            (threads, *params),
            tensors=tensors,
            n_written=n_written,
        )
    ]


def _has_whole_rows(node: Tensor) -> bool:
    tensors = (node, *node.src)
    return is_countable(*tensors) and all(t.has_contiguous_rows for t in tensors)


@implements(Op.SUM_ROWS, supports=_has_whole_rows)
def sum_rows(node: Tensor) -> Sequence[Call]:
    return _call(ROWS, "sum_rows_f32", node.src[0])


# --- softmax ---


@implements(Op.SOFT_MAX, supports=_has_whole_rows)
def soft_max(node: Tensor) -> Sequence[Call]:
    assert isinstance(node.params, SoftMaxParams), f"{node!r}: {node.params}"
    if len(node.src) == 1:
        return _call(SOFT_MAX, "soft_max_f32", node, node.params.scale)
    mask = int(node.src[1].type)
    return _call(SOFT_MAX, "soft_max_masked_f32", node, *node.params, mask)


# --- norms ---


def _name(norm: Tensor) -> str:
    return norm.op.name.lower()


def _eps(norm: Tensor) -> float:
    assert isinstance(norm.params, EpsParams), f"{norm!r}: {norm.params}"
    return norm.params.eps


@implements(Op.NORM, Op.RMS_NORM, supports=_has_whole_rows)
def norms(node: Tensor) -> Sequence[Call]:
    return _call(ROWS, f"{_name(node)}_f32", node, _eps(node))


def _has_float_rows(*tensors: Tensor) -> bool:
    whole = all(t.type is GGMLType.F32 and t.has_contiguous_rows for t in tensors)
    return whole and is_countable(*tensors)


def _is_weighted(norm: Tensor, mul: Tensor) -> bool:
    """True if each row is multiplied by the same one."""
    weight = mul.src[1]
    whole = weight.ne[0] == mul.ne[0] and weight.n_rows == 1
    return whole and _has_float_rows(mul, norm.src[0], weight)


@fuses(NormMul)
def norm_mul(chain: NormMul) -> Sequence[Call] | None:
    """The result of the product alone."""
    norm, mul = chain.norm, chain.mul
    if not _is_weighted(norm, mul):
        return None
    tensors = (mul, norm.src[0], mul.src[1])
    return _call(ROWS, f"{_name(norm)}_mul_f32", mul, _eps(norm), tensors=tensors)


@fuses(AddNormMul)
def add_norm_mul(chain: AddNormMul) -> Sequence[Call] | None:
    """The sum, if somebody reads it, and the product."""
    add, norm, mul = chain.nodes
    a, b = add.src
    if not _is_weighted(norm, mul) or not _has_float_rows(add, a, b) or b.ne != add.ne:
        return None
    total = add if chain.keeps_sum else mul
    tensors = (mul, total, a, b, mul.src[1])
    name = f"add_{_name(norm)}_mul_f32"
    return _call(ROWS, name, mul, _eps(norm), tensors=tensors, n_written=2)
