"""For the tests of the CPU kernels: one node computed by a plan, between guard bytes."""

from __future__ import annotations

from functools import cache

import reference_run
from reference_run import GUARD, Array, data, locate

from lamella.graph import Tensor
from lamella.kernels.cpu.plan import Plan
from lamella.kernels.cpu.pool import ThreadPool


@cache
def pool(n_threads: int) -> ThreadPool:
    """A pool of so many threads, for all tests."""
    return ThreadPool(n_threads)


def address_of(_: Tensor, t: Tensor) -> int:
    return int(t.buffer.ctypes.data) + t.offset


def prepare(node: Tensor, over: Tensor | None = None, shift: int = 0) -> None:
    """Give a node its memory, and its sources their data, by the reference kernels."""
    for src in node.src:
        if src.buffer is None:
            reference_run.compute(src)
    locate(node, over, shift)


def compute(node: Tensor, n_threads: int = 1, over: Tensor | None = None, shift: int = 0) -> Array:
    """The node's array, computed with the CPU kernels; what they must not touch is compared.

    Args:
        node: what to compute; its sources get their data from the reference kernels.
        n_threads: of the pool.
        over: a tensor in whose memory the result shall lie.
        shift: bytes off the alignment.
    """
    prepare(node, over, shift)
    others = {s.root: s.root.buffer.copy() for s in node.src if s.root.buffer is not node.buffer}
    Plan([node], address_of, n_threads).run(pool(n_threads))
    root = node.root
    end = root.offset + root.nbytes
    assert (root.buffer[: root.offset] == GUARD).all(), f"{node}: bytes before it were written"
    assert (root.buffer[end:] == GUARD).all(), f"{node}: bytes behind it were written"
    for src, before in others.items():
        assert (src.buffer == before).all(), f"{node}: its source {src} was written"
    return data(node)
