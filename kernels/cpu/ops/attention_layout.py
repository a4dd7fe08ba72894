"""Numbers that the kernels of attention share: parameters, and the layout of scratch memory.

Knows no kernels. Tested by tests/kernels/test_cpu_attention.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..simd.vectors import LANES

BLOCK: Final = 32  # positions that a query processes at a time
PARTITION: Final = 16 * BLOCK  # positions with sums of their own, which are then merged
TILE: Final = 4  # queries that read the same keys and values at once

# parameters of all kernels here
SCALE: Final = 0
MAX_BIAS: Final = 1
SOFTCAP: Final = 2
PAGE_SIZE: Final = 3
N_TOKENS: Final = 4  # of one sequence that are computed together, at most
N_RECORDS: Final = 5  # of sums that fit into shared memory; 0: partitions are not divided
LOAD_K: Final = 6  # address of the `load_rows` of keys; the next parameter is that of values
K_SIZE: Final = 8  # bytes of a head's key, about; the next parameter is that of its value

VECTOR: Final = 4 * LANES  # bytes

# a thread's scratch memory, in bytes
RUNS: Final = 0  # of rows that are side by side: where a block's keys and values are
RUNS_SIZE: Final = 32 * BLOCK  # and twice this, for those of the next block
DOTS: Final = RUNS + 2 * RUNS_SIZE  # products of a tile: for 4 positions each 4 of each query
FLOATS: Final = DOTS + TILE * 4 * BLOCK  # a block of K as floats, one of V, and the queries

# of a run: addresses of its first rows, its rows
RUN_K: Final = 0
RUN_V: Final = 8
RUN_N: Final = 16
RUN_SIZE: Final = 32

# a query's state: results, then its `sums`, those of partitions before, and the query itself
OUT: Final = 0  # address of the result
POS: Final = 8
RECORD: Final = 16  # address of records of sums in shared memory, or 0
SLOPE: Final = 24  # of ALiBi, a float32
WEIGHTS: Final = VECTOR  # the block's scores, then their exponentials
SUMS: Final = WEIGHTS + 4 * BLOCK
# sums over positions
LARGEST: Final = 0  # score, in all lanes
TOTAL: Final = LARGEST + VECTOR  # of exponentials, spread over lanes
VALUES: Final = TOTAL + VECTOR  # weighted


class Sizes(NamedTuple):
    """Bytes: rows of K and V as floats, sums, a query's state, a thread's scratch memory."""

    k: int
    v: int
    sums: int
    query: int
    work: int


def sizes_of(head_dim: int, head_dim_v: int, n_queries: int) -> Sizes:
    """The sizes for so many queries at a time."""
    k, v = (-(-n // LANES) * VECTOR for n in (head_dim, head_dim_v))
    sums = VALUES + v
    query = SUMS + 2 * sums + k
    return Sizes(k, v, sums, query, FLOATS + BLOCK * (k + v) + n_queries * query)
