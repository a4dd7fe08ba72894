"""Sparse attention's choice of positions, with src/sparse.cu. Tested by
tests/kernels/test_sparse.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import IndexParams, Op, PageParams
from ....graph.tensor import Tensor, params_of
from ..table import CudaCall, CudaKernel, CudaSource, implements
from .attention import TYPES_F32

SOURCE: Final = CudaSource.of("sparse.cu")
THREADS: Final = 256


def _grid(node: Tensor) -> tuple[int, int, int]:
    return node.ne[1], -(-node.ne[0] // THREADS), 1


@implements(Op.INDEX_SCORES, supports=lambda node: node.src[1].type in TYPES_F32)
def index_scores(node: Tensor) -> Sequence[CudaCall]:
    params = (*params_of(node, IndexParams), int(node.src[1].type))
    return [CudaCall(CudaKernel(SOURCE, "index_scores"), _grid(node), THREADS, params)]


@implements(Op.PAGE_CELLS)
def page_cells(node: Tensor) -> Sequence[CudaCall]:
    params = (params_of(node, PageParams).page_size,)
    return [CudaCall(CudaKernel(SOURCE, "page_cells"), _grid(node), THREADS, params)]
