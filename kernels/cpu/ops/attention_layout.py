"""Numbers that the kernels of attention share: parameters, and the layout of scratch memory.

Knows no kernels. Tested by tests/kernels/test_cpu_attention.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..simd.vectors import LANES

BLOCK: Final = 32  # positions that a query processes at a time
PARTITION: Final = 8 * BLOCK  # positions whose sums are computed separately, then merged
HALF: Final = 16  # elements of half a block of a quantized type
TILE: Final = 4  # queries that read the same keys and values at once

# parameters of all kernels here
SCALE: Final = 0
MAX_BIAS: Final = 1
SOFTCAP: Final = 2
PAGE_SIZE: Final = 3
N_TOKENS: Final = 4  # most tokens of one sequence that are computed together
N_RECORDS: Final = 5  # records of sums in shared scratch; 0: partitions are not divided
LOAD_K: Final = 6  # address of the `load_rows` of keys; the next parameter is that of values
K_SIZE: Final = 8  # bytes of a head's key in whole blocks; the next parameter is that of its value
HAS_SINKS: Final = 10  # 1 if heads have sinks
IS_DIRECT: Final = 11  # 1 if few queries read a page's rows of F16 where they are

# tensors besides q, k and v, which follow the node
PAGES: Final = 4
SEQ: Final = 5
POS: Final = 6
BEGIN: Final = 7
END: Final = 8
SINKS: Final = 9

VECTOR: Final = 4 * LANES  # bytes

# a thread's scratch memory, in bytes
RUNS: Final = 0  # runs of contiguous rows: the keys and values of a block
RUNS_SIZE: Final = 32 * BLOCK  # the runs of the next block follow
DOTS: Final = RUNS + 2 * RUNS_SIZE  # products of a tile of queries, 4 positions at a time
FLOATS: Final = DOTS + TILE * 4 * BLOCK  # a block of K and one of V as floats, then the queries

# a run: addresses of its first rows of K and V, number of rows
RUN_K: Final = 0
RUN_V: Final = 8
RUN_N: Final = 16
RUN_SIZE: Final = 32

# a query's state: these words, its sums, the sums of earlier partitions, the query as floats
OUT: Final = 0  # address of the result
FIRST: Final = 8  # the span of positions that the query attends to: FIRST to LAST - 1
LAST: Final = 16
RECORD: Final = 24  # address of partition 0's record of sums in shared memory, or 0
SLOPE: Final = 32  # ALiBi's slope, a float32
POSITION: Final = 40  # of the query, for ALiBi
SINK: Final = 48  # the sink's score, a float32
WEIGHTS: Final = VECTOR  # the block's scores, then their exponentials
SUMS: Final = WEIGHTS + 4 * BLOCK
# sums over positions
LARGEST: Final = 0  # the largest score, in all lanes
TOTAL: Final = LARGEST + VECTOR  # sums of exponentials, one in each lane
VALUES: Final = TOTAL + VECTOR  # weighted values


class Sizes(NamedTuple):
    """Bytes of rows of K and V as floats, sums, a query's state, and a thread's scratch memory."""

    k: int
    v: int
    sums: int
    query: int
    work: int


def sizes_of(head_dim: int, head_dim_v: int, n_queries: int) -> Sizes:
    """The sizes for `n_queries` at a time."""
    k, v = (-(-n // LANES) * VECTOR for n in (head_dim, head_dim_v))
    sums = VALUES + v
    query = SUMS + 2 * sums + k
    return Sizes(k, v, sums, query, FLOATS + BLOCK * (k + v) + n_queries * query)
