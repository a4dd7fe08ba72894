"""Nodes of paged attention, computed in every way of a backend, for the tests of its kernels.

    check(on, Shape(8, 2), SEQ, POS)    # the reference's values, the same bits in all ways

There are three sequences with a query for each position; `seq` and `pos` choose the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, NamedTuple
from unittest.mock import patch
from zlib import crc32

import cpu_run
import cuda_run
import numpy as np
import reference_run
from backends import CPU, Backend
from reference_run import Array, assert_close, data, ids, leaf, normal, relative_error, values_of

from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cuda.limits import H100
from lamella.kernels.cuda.ops import attention
from lamella.kernels.cuda.ops.attention import Division, has_tensor_cores

F32, F16, BF16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0
KV_TYPES: Final = (F32, F16, BF16, Q8_0)  # that all backends support
N_SEQS: Final = 3
# of each sequence: whole pages of up to 128; partitions of 256
N_POSITIONS: Final = 1664
N_CELLS: Final = N_SEQS * N_POSITIONS

# runs of tokens of one sequence; positions at the edges of tiles and partitions
SEQ: Final = np.array([0, 0, 0, 0, 0, 1, 1, 2, 1, 2, 2, 2, 2, 0, 0, 0])
POS: Final = np.array([0, 31, 32, 33, 255, 256, 257, 95, 7, 511, 512, 513, 1055, 700, 701, 3])

SMALL, WIDE = Division(1), Division(4)
DIVISIONS: Final = (
    *(SMALL, WIDE, Division(4, 3, 1000)),
    Division(1, 9, 3),  # records do not fit
    *(Division(1, 5, 1000, 4), Division(1, 2, 3, 2)),
)
DIVISIONS_F32: Final = (Division(0), Division(0, 2, 1000), Division(0, 3, 5))

Way = int | Division | None  # threads of the CPU; how work is divided on a GPU


class Shape(NamedTuple):
    """Heads of queries and of the pool, their elements, types of the pools."""

    n_head: int = 4
    n_head_kv: int = 2
    k: int = 32
    v: int = 32
    type_k: GGMLType = F16
    type_v: GGMLType = F16

    def __str__(self) -> str:
        heads = f"{self.n_head} of {self.n_head_kv}"
        return f"{heads} {self.k} {self.type_k.name} {self.v} {self.type_v.name}"


SHAPE: Final = Shape()


@cache
def pool(n: int, type: GGMLType, seed: int) -> Tensor:
    return leaf(normal(N_CELLS, n, seed=seed), type)


@cache
def queries(n_head: int, head_dim: int) -> Array:
    """A query for each position of each sequence."""
    return normal(N_SEQS, N_POSITIONS, n_head, head_dim)


def table(page_size: int = 32) -> Array:
    """Pages of the sequences, anywhere in the pool."""
    n = N_POSITIONS // page_size
    return np.random.default_rng(1).permutation(N_CELLS // page_size)[: 3 * n].reshape(N_SEQS, n)


def build(
    shape: Shape = SHAPE,
    seq: Any = SEQ,
    pos: Any = POS,
    *,
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
    pages: Any = None,
    begin: Any = 0,
    end: Any = None,
    sinks: Any = None,
    page_size: int = 32,
    **params: Any,
) -> Tensor:
    """A node; tokens are causal unless `begin` or `end` say otherwise."""
    if q is None:
        q = leaf(queries(shape.n_head, shape.k)[seq, pos])
    k = pool(shape.n_head_kv * shape.k, shape.type_k, 1) if k is None else k
    v = pool(shape.n_head_kv * shape.v, shape.type_v, 2) if v is None else v
    pages = ids(table(page_size) if pages is None else pages)
    params.setdefault("scale", shape.k**-0.5)
    end = np.add(pos, 1) if end is None else end
    tokens = (ids(np.broadcast_to(x, np.shape(pos))) for x in (seq, pos, begin, end))
    params["sinks"] = None if sinks is None else leaf(np.array(sinks))
    return ops.flash_attn_ext(q, k, v, pages, *tokens, page_size=page_size, **params)


@contextmanager
def division(chosen: Division | None) -> Iterator[None]:
    """Divide all nodes this way in the block."""
    if chosen is None:
        yield
        return
    with patch.object(attention, "divided", lambda *_: chosen):
        yield


def ways(on: Backend, node: Tensor) -> tuple[Way, ...]:
    """The ways in which a backend can compute a node; first the one that it chooses."""
    if on is CPU:
        return 1, 2, 3, 5
    divisions: Sequence[Division] = DIVISIONS if has_tensor_cores(node) else DIVISIONS_F32
    # for each number of warps, size and type, a source is compiled
    if (node.src[0].ne[0], *(pool.type for pool in node.src[1:3])) != (SHAPE.k, F16, F16):
        divisions = [d for d in divisions if d.split in (0, attention.SPLIT_WARPS[0])]
    return None, *(d for d in divisions if attention.resident_blocks(node, d, H100))


def some_ways(on: Backend, node: Tensor) -> Sequence[tuple[int, Way]]:
    """All ways but the first, with their numbers. On the emulated GPU, which is slow, two of them:
    which ones depends on the node, so that many nodes have all."""
    found = [*enumerate(ways(on, node)[1:])]
    if on is CPU or len(found) < 3:
        return found
    key = b"".join(data(s).tobytes() for s in node.src[3:]) + str(node.params).encode()
    begin = crc32(key) % len(found)
    return [found[begin], found[begin - 1]]


def bits(on: Backend, node: Tensor, way: Way = None, **run: Any) -> Array:
    """The result's bits as integers; the first axis is the tokens."""
    assert on.supports(node)
    if isinstance(way, int):
        found = cpu_run.compute(node, way)
    elif on is CPU:
        found = on.compute(node)
    else:
        with division(way):
            found = cuda_run.compute(node, **run)
    return np.ascontiguousarray(found[0]).view(np.uint32).copy()


def check(on: Backend, *args: Any, **params: Any) -> Array:
    """Check for the reference's values, and the same bits in all ways. Return the bits."""
    node = build(*args, **params)
    whole = bits(on, node)
    expected = reference_run.run(build(*args, **params))
    if on is CPU:
        assert_close(values_of(node), expected)
    else:
        limit = 3e-6 if node.src[1].type is BF16 else 3e-7  # of tensor cores' operands
        limit = limit if has_tensor_cores(node) else 1e-11
        assert relative_error(values_of(node), expected) <= limit
    for i, way in some_ways(on, node):
        run = {} if on is CPU else {"reverse": i % 2 == 0, "shift": (8, 4, 0)[i % 3]}
        assert (bits(on, build(*args, **params), way, **run) == whole).all(), way
    if on is not CPU:
        assert (bits(on, build(*args, **params), reverse=True, shift=8) == whole).all()
    return whole
