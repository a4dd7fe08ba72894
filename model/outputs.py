"""The outputs of a decode graph: rows of logits, or only the largest logits of each row.

A sampler often needs only the largest logits. If logits are in a device's memory, the graph finds
the largest on the device, and only these are copied to the host. Knows no batches and no sampling.
Tested by tests/model/test_outputs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..alloc.buffer import tensor_read
from ..graph import GGMLType, Tensor, ops
from ..sched.backend import Device

I32Array = npt.NDArray[np.int32]
F32Array = npt.NDArray[np.float32]

N_TOPS: Final = (1, 64, 256, 1024)  # few sizes, as each needs its own graphs


@dataclass(frozen=True, slots=True)
class TopLogits:
    """The n largest logits of a row without NaN, in descending order; equal ones by id."""

    ids: I32Array  # [n]
    logits: F32Array  # [n]; the first is finite

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.logits.nbytes


Row: TypeAlias = F32Array | TopLogits  # all logits [n_vocab], or the largest


class TopNodes(NamedTuple):
    """The nodes that find the largest logits of each row."""

    ids: Tensor  # I32 [n_top, n_outputs]
    logits: Tensor  # F32 [1, n_top, n_outputs]
    sums: Tensor  # F32 [1, n_outputs]; NaN if a logit is, as top_k puts NaN last

    @classmethod
    def of(cls, logits: Tensor, n_top: int) -> TopNodes:
        """Return the nodes for logits [n_vocab, n_outputs], flagged as outputs."""
        ids = ops.top_k(logits, n_top)
        entries = ops.reshape(logits, (1, *logits.ne[:2]))
        return cls(
            ids.named("result_top_ids").set_output(),
            ops.get_rows(entries, ids).named("result_top_logits").set_output(),
            ops.sum_rows(logits).named("result_sums").set_output(),
        )


class Outputs:
    """A graph's outputs: logits [n_vocab, n_outputs], and with `n_top` the largest of each row."""

    def __init__(self, logits: Tensor, n_top: int = 0) -> None:
        self.logits = logits
        self.top = TopNodes.of(logits, n_top) if n_top else None

    @property
    def tensors(self) -> Sequence[Tensor]:
        return (self.logits, *(self.top or ()))

    def read_logits(self, out: F32Array, first: int = 0) -> None:
        """Read rows from `first` on into `out`, [n, n_vocab] or [n_vocab]."""
        tensor_read(self.logits, out.reshape(-1).view(np.uint8), first * self.logits.nb[1])

    def read_rows(self, n_tops: Sequence[int]) -> list[Row]:
        """Return the first len(n_tops) rows.

        Row i is a TopLogits if 0 < n_tops[i] <= `n_top`, else a whole row. A row with a NaN or an
        infinite largest logit is returned whole, so that the sampler can raise an error.
        """
        assert self.top is not None, "the graph returns whole rows only"
        n_rows, n_top = len(n_tops), self.top.ids.ne[0]
        ids = _read(self.top.ids, np.empty((n_rows, n_top), np.int32))
        logits = _read(self.top.logits, np.empty((n_rows, n_top), np.float32))
        sums = _read(self.top.sums, np.empty(n_rows, np.float32))
        sound = np.isfinite(logits[:, 0]) & ~np.isnan(sums)
        return [
            TopLogits(ids[i], logits[i]) if 0 < n <= n_top and sound[i] else self._whole_row(i)
            for i, n in enumerate(n_tops)
        ]

    def _whole_row(self, i: int) -> F32Array:
        row = np.empty(self.logits.ne[0], np.float32)
        self.read_logits(row, i)
        return row


def top_sizes(device: Device, n_vocab: int) -> tuple[int, ...]:
    """Return the sizes of TopLogits that graphs can return if `device` computes the logits.

    Empty if logits are in host memory or the device does not support the ops.
    """
    if device.buffer_type.is_host:
        return ()
    logits = Tensor(GGMLType.F32, (n_vocab, 1), name="logits")
    return tuple(
        n_top
        for n_top in N_TOPS
        # ids and logits must be smaller than the row that they replace
        if 2 * n_top < n_vocab and all(map(device.supports_op, TopNodes.of(logits, n_top)))
    )


def top_size(n_tops: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the smallest size that serves the most outputs, or 0 if no size serves any.

    Args:
        n_tops: the number of largest logits that each output needs; 0 for all, which no size
            serves.
        sizes: ascending.
    """
    most = max((n for n in n_tops if n <= sizes[-1]), default=0)
    return next((size for size in sizes if size >= most), 0) if most else 0


def _read(tensor: Tensor, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    tensor_read(tensor, out.reshape(-1).view(np.uint8))
    return out
