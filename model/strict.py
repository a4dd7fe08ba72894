"""The checks of LAMELLA_STRICT=1 in a context: moved memory and uninitialized memory.

Memory that a ubatch must write before it reads is poisoned. A read that comes too early returns
NaN, which reaches the logits. The error names the node with the first NaN. Tested by
tests/model/test_strict.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ..alloc.buffer import Buffer
from ..alloc.host import read_array
from ..base.errors import StrictError
from ..base.log import get_logger
from ..base.settings import STRICT
from ..graph.op import VIEW_OPS, Op
from ..graph.tensor import Tensor
from ..graph.types import GGMLType
from ..sched.scheduled import ScheduledGraph
from ..sched.scheduler import POISON
from .outputs import F32Array, Row

log = get_logger("context")

NOT_CHECKED: Final = VIEW_OPS | {Op.NONE, Op.SET_ROWS}  # the result of SET_ROWS is the whole pool
FLOATS: Final = (GGMLType.F32, GGMLType.F16)


def report_unexpected(what: str) -> None:
    """Report that memory moved or that a graph was built again.

    Raises:
        StrictError: in strict mode; else the report is a warning in the log.
    """
    if STRICT():
        raise StrictError(what)
    log.warning(f"{what}: this is slow and should not happen")


def clear_pool(buffers: Sequence[Buffer]) -> None:
    """Fill a new pool with zeros, or with poison in strict mode.

    The value does not matter: every cell is written before it is read, the scratch page included.
    Memory that holds zeros already is not written, so that it takes pages only as it is used.
    """
    for buffer in buffers:
        if STRICT():
            buffer.clear(POISON)
        elif not buffer.buft.is_zeroed:
            buffer.clear()


def have_nan(rows: F32Array | Sequence[Row]) -> bool:
    """True if a whole row has a NaN. A TopLogits has none."""
    return any(isinstance(row, np.ndarray) and bool(np.isnan(row).any()) for row in rows)


class NanFinder:
    """An eval callback that stops at the first node with a NaN and stores it in `node`."""

    def __init__(self) -> None:
        self.node: Tensor | None = None

    def __call__(self, node: Tensor, ask: bool) -> bool:
        if ask:
            return node.op not in NOT_CHECKED and node.type in FLOATS
        if np.isnan(read_array(node).astype(np.float32)).any():
            self.node = node
        return self.node is None


def raise_nan(scheduled: ScheduledGraph, compute: Callable[[NanFinder], None]) -> None:
    """Find the node that made NaN logits and raise an error.

    `compute` computes the graph again with an eval callback.

    Raises:
        StrictError: always; names the first node with a NaN.
    """
    finder = NanFinder()
    compute(finder)
    if finder.node is None:
        raise StrictError(
            "logits are NaN, but not if each node is computed alone: a wait is missing or a fused "
            "kernel is wrong"
        )
    node = finder.node
    backend = scheduled.backend_of(node).name
    sources = ", ".join(repr(src) for src in node.src)
    raise StrictError(
        f"logits are NaN: the first node with a NaN is {node.op.name} {node!r} on {backend}, "
        f"computed from {sources}: it read uninitialized memory, or an input was NaN"
    )
