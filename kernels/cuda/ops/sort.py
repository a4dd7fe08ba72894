"""ARGSORT (src/sort.cu) and TOP_K (src/top_k.cu): stable, NaN last.

Rows that are longer than a tile are sorted in tiles, which are then merged. The k largest of a long
row are found in rounds, without sorting the rest. Tested by tests/kernels/test_sort.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ....graph.op import Op
from ....graph.tensor import Tensor
from ...plan.node_params import is_descending
from ..table import CudaCall, CudaKernel, CudaSource, implements
from .elementwise import BLOCK, is_countable

TILE: Final = 2048  # keys that a block sorts
KEY_BYTES: Final = 8
MAX_SCRATCH: Final = 2**28  # bytes; if the rows do not fit, they are sorted in several groups
MAX_ROW: Final = 2**23  # elements; the second dimension of a grid is limited
MAX_K: Final = 1024  # for a larger k the whole row is sorted
HELD: Final = 8  # keys of a thread of top_k
MAX_THREADS: Final = 1024

SORT: Final = CudaSource.of("sort.cu")
TOP_K: Final = CudaKernel(CudaSource.of("top_k.cu"), "top_k")


def _supports(node: Tensor) -> bool:
    a = node.src[0]
    return is_countable(a) and a.ne[0] <= MAX_ROW


@implements(Op.ARGSORT, supports=_supports)
def argsort(node: Tensor) -> Sequence[CudaCall]:
    return list(_sort(node, is_descending(node)))


@implements(Op.TOP_K, supports=_supports)
def top_k(node: Tensor) -> Sequence[CudaCall]:
    if node.src[0].ne[0] <= TILE or node.ne[0] > MAX_K:
        return list(_sort(node, True))
    return list(_rounds(node))


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


# --- sorting all ---


def _sort(node: Tensor, descending: bool) -> Iterator[CudaCall]:
    """The calls that sort rows and write as many indices as the node has, a group of rows at a
    time."""
    n, n_rows = node.src[0].ne[0], node.n_rows
    lot = n_rows if n <= TILE else max(1, MAX_SCRATCH // (2 * KEY_BYTES * n))
    for first in range(0, n_rows, lot):
        yield from _sort_rows(n, descending, first, min(lot, n_rows - first))


def _sort_rows(n: int, descending: bool, first: int, n_rows: int) -> Iterator[CudaCall]:
    scratch = 0 if n <= TILE else 2 * KEY_BYTES * n * n_rows
    keys, run, half = min(_power_of_two(n), TILE), TILE, 0
    params = (descending, first, n_rows)
    tiles = (n_rows, -(-n // TILE), 1)
    threads = max(keys // 2, 32)
    last = int(run >= n)
    yield CudaCall(
        CudaKernel(SORT, "sort_tiles"),
        tiles,
        threads,
        (*params, keys, 0, half, 0, last),
        0,
        scratch,
    )
    while run < n:
        last = int(2 * run >= n)
        merged = (*params, 0, half, 1 - half, run, last)
        grid = (n_rows, -(-n // BLOCK), 1)
        yield CudaCall(CudaKernel(SORT, "merge_runs"), grid, BLOCK, merged, 0, scratch)
        run, half = 2 * run, 1 - half


# --- only the largest ---


def _rounds(node: Tensor) -> Iterator[CudaCall]:
    """The calls of all rounds. A round keeps k keys of each group; in the last one there is one
    group."""
    k, n, source, to = node.ne[0], node.src[0].ne[0], -1, 0
    threads = _threads(n)
    n_keys = -(-n // (threads * HELD)) * k  # after the first round; later rounds have fewer
    scratch = 2 * KEY_BYTES * n_keys * node.n_rows
    while True:
        threads = _threads(n)
        n_groups = -(-n // (threads * HELD))
        params = (k, n, source, to, n_keys, n_groups == 1)
        yield CudaCall(TOP_K, (node.n_rows, n_groups, 1), threads, params, 0, scratch)
        if n_groups == 1:
            return
        n, source, to = n_groups * k, to, 1 - to


def _threads(n: int) -> int:
    """Threads of a block; fewer for few elements."""
    return min(max(_power_of_two(-(-n // HELD)), 32), MAX_THREADS)
