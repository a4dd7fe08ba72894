"""What LAMELLA_STRICT=1 looks for in a context: memory that moves or was never written.

All memory that a ubatch may only read after it has written it is poisoned, so that whoever reads
too early gets NaN; these reach the logits, and the node that made the first one is named. Tested by
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

NO_VALUES: Final = VIEW_OPS | {Op.NONE, Op.SET_ROWS}  # SET_ROWS is the whole pool
FLOATS: Final = (GGMLType.F32, GGMLType.F16)


def unexpected(what: str) -> None:
    """Memory moved, or a graph was built again.

    Raises:
        StrictError: that is an error now; else it is only told.
    """
    if STRICT():
        raise StrictError(what)
    log.warning(f"{what}: this is slow, and should not happen")


def clear_pool(buffers: Sequence[Buffer]) -> None:
    """Fill a new pool. No cell is read before it is written, padding tokens' own included: so it
    does not matter what is there, and strict has poison."""
    for buffer in buffers:
        buffer.clear(POISON if STRICT() else 0)


def have_nan(rows: F32Array | Sequence[Row]) -> bool:
    """Whether there is a NaN; among the largest logits of a row there can be none."""
    return any(isinstance(row, np.ndarray) and bool(np.isnan(row).any()) for row in rows)


class NanFinder:
    """An eval callback that stops at the first node whose values, now computed, have a NaN."""

    def __init__(self) -> None:
        self.node: Tensor | None = None

    def __call__(self, node: Tensor, ask: bool) -> bool:
        if ask:
            return node.op not in NO_VALUES and node.type in FLOATS
        if np.isnan(read_array(node).astype(np.float32)).any():
            self.node = node
        return self.node is None


def raise_nan(scheduled: ScheduledGraph, compute: Callable[[NanFinder], None]) -> None:
    """Tell of logits that are NaN; `compute` computes their graph again, with a callback.

    Raises:
        StrictError: always; names the first node that has a NaN.
    """
    finder = NanFinder()
    compute(finder)
    if finder.node is None:
        raise StrictError(
            "logits are NaN, but not if each node is computed alone: a wait or a fused kernel is "
            "wrong"
        )
    node = finder.node
    backend = scheduled.backend_of(node).name
    sources = ", ".join(repr(src) for src in node.src)
    raise StrictError(
        f"logits are NaN: the first node that has one is {node.op.name} {node!r} on {backend}, "
        f"computed from {sources}: it has read what nobody had written, or what was NaN before"
    )
