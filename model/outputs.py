"""The outputs of a decode graph: rows of logits, or only the largest logits of each row.

A sampler often needs only the largest logits. If logits are in a device's memory, the graph finds
the largest on the device, and only these are copied to the host. A mask can leave out tokens: it is
a late input, so the device computes the logits before the host knows the mask. Knows no sampling.
Tested by tests/model/test_outputs.py and tests/runtime/test_grammar_devices.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from math import isfinite, isnan
from typing import Final, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from ..alloc.buffer import Bytes, buffer_of, tensor_copy, tensor_read, view_init
from ..alloc.host import HostBuffer
from ..graph import GGMLType, Op, Tensor, ops
from ..sched.backend import Backend, Device
from .batch import LateMask, Mask

I32Array = npt.NDArray[np.int32]
F32Array = npt.NDArray[np.float32]

N_TOPS: Final = (1, 64, 256, 1024)  # few sizes, as each needs its own graphs


class TopLogits(NamedTuple):
    """The n largest logits of a row without NaN, in descending order; equal ones by id.

    With a mask, those of the allowed tokens; all of them if they are fewer than requested.
    """

    ids: I32Array  # [n]
    logits: F32Array  # [n]; the first is finite

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.logits.nbytes


class TopRows(Sequence[TopLogits]):
    """Rows that have equally many largest logits: `ids` and `logits` [n_rows, n]."""

    __slots__ = ("ids", "logits")

    def __init__(self, ids: I32Array, logits: F32Array) -> None:
        self.ids = ids
        self.logits = logits

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, i: int) -> TopLogits: ...
    @overload
    def __getitem__(self, i: slice) -> TopRows: ...
    def __getitem__(self, i: int | slice) -> TopLogits | TopRows:
        kind = TopRows if isinstance(i, slice) else TopLogits
        return kind(self.ids[i], self.logits[i])


Row: TypeAlias = F32Array | TopLogits  # all logits [n_vocab], or the largest
Rows: TypeAlias = F32Array | list[Row] | TopRows  # [n, n_vocab], or n rows


class TopNodes(NamedTuple):
    """The nodes that find the largest logits of each row. The first needs no mask."""

    sums: Tensor  # F32 [1, n_outputs]; NaN if a logit is, as top_k puts NaN last
    ids: Tensor  # I32 [n_top, n_outputs]
    logits: Tensor  # F32 [1, n_top, n_outputs]

    @classmethod
    def of(cls, logits: Tensor, n_top: int, mask: Tensor | None = None) -> TopNodes:
        """Return the nodes for logits [n_vocab, n_outputs], flagged as outputs."""
        ids = ops.top_k(logits, n_top, mask)
        entries = ops.reshape(logits, (1, *logits.ne[:2]))
        return cls(
            ops.sum_rows(logits).named("result_sums").set_output(),
            ids.named("result_top_ids").set_output().set_feeding(),
            ops.get_rows(entries, ids).named("result_top_logits").set_output(),
        )


class TopResults(NamedTuple):
    """The results of `TopNodes`, and the same as arrays. The views are of all logits and sums."""

    raw: tuple[Bytes, Bytes, Bytes]  # ids, logits, sums
    ids: I32Array  # [n_rows, n_top]
    logits: F32Array  # [n_rows, n_top]
    all_logits: memoryview
    all_sums: memoryview

    @classmethod
    def of(cls, ids: Bytes, logits: Bytes, sums: Bytes, n_rows: int) -> TopResults:
        floats = logits.view(np.float32)
        return cls(
            (ids, logits, sums),
            ids.view(np.int32).reshape(n_rows, -1),
            floats.reshape(n_rows, -1),
            floats.data,
            sums.view(np.float32).data,
        )


class Outputs:
    """A graph's outputs: logits [n_vocab, n_outputs], and with `n_top` the largest of each row.

    Attributes:
        mask: the tokens of each row that may be among the largest: I32 [n_words, n_outputs], a late
            input. None if all may.
    """

    def __init__(self, logits: Tensor, n_top: int = 0, *, masked: bool = False) -> None:
        self.logits = logits
        self.mask = mask_input(logits) if masked else None
        self.top = TopNodes.of(logits, n_top, self.mask) if n_top else None
        self._known: dict[int, TopResults] = {}  # by the memory of the ids, if the host has them
        self._rows: TopRows | None = None  # the memory of the last rows

    @cached_property
    def in_place(self) -> F32Array | None:
        """Logits [n_outputs, n_vocab] in the host's memory; None if they are in a device's. The
        graph must be scheduled."""
        buffer = buffer_of(self.logits)
        if not isinstance(buffer, HostBuffer):
            return None
        return buffer.array(self.logits).view(np.float32).reshape(-1, self.logits.ne[0])

    @property
    def tensors(self) -> Sequence[Tensor]:
        return (self.logits, *(self.top or ()))

    def read_logits(self, out: F32Array, first: int = 0) -> None:
        """Read rows from `first` on into `out`, [n, n_vocab] or [n_vocab]."""
        tensor_read(self.logits, out.reshape(-1).view(np.uint8), first * self.logits.nb[1])

    def copy_logits(self, to: Tensor, first: int, n: int, backend: Backend) -> None:
        """Copy the first `n` rows to rows of `to` [n_vocab, n_rows] from `first` on, by `backend`,
        which computed them. Returns when done."""
        src, dst = _rows(self.logits, 0, n), _rows(to, first, n)
        if not backend.cpy_tensor_async(backend, src, dst):
            tensor_copy(src, dst)
        backend.synchronize()

    def read_rows(
        self,
        n_tops: Sequence[int],
        masks: Sequence[LateMask | None],
        held: TopResults | None = None,
    ) -> list[Row] | TopRows:
        """Return the first len(n_tops) rows, which are valid until the next call.

        Row i is a TopLogits if 0 < n_tops[i] <= `n_top`, else a whole row. A row with a NaN or an
        infinite largest logit is returned whole, so that the sampler can raise an error. So is a
        row without an allowed token. `masks` are those of the graph's run, empty if it has none.
        `held`: what `hold` returned, if the graph computes again. A whole row then has its largest
        logit in all places, or NaNs.
        """
        assert self.top is not None, "the graph returns whole rows only"
        n_rows, n_top = len(n_tops), self.top.ids.ne[0]
        found = held or self._top_results(self.top, n_rows)
        logits, sums = found.all_logits, found.all_sums
        are_sound = [isfinite(logits[i * n_top]) and not isnan(sums[i]) for i in range(n_rows)]
        if n_tops and not masks and all(are_sound) and 0 < min(n_tops) <= max(n_tops) <= n_top:
            return self._copied(found, n_rows)
        rows: list[Row] = []
        for i, n in enumerate(n_tops):
            m = n_top if are_sound[i] and 0 < n <= n_top else 0
            if m and masks and (mask := masks[i]) is not None:
                m = _n_allowed(found.ids[i], mask())
            if m:
                rows.append(TopLogits(found.ids[i, :m].copy(), found.logits[i, :m].copy()))
            elif held is not None:
                largest = np.nan if isnan(sums[i]) else logits[i * n_top]
                rows.append(np.full(self.logits.ne[0], largest, np.float32))
            else:
                rows.append(self._whole_row(i))
        return rows

    def hold(self) -> TopResults | None:
        """Where a run that has started puts the largest logits, to be read when another run has
        followed it (`Scheduler.follow_async`); None if the host does not have them."""
        return None if self.top is None else self._in_place(self.top)

    def _top_results(self, top: TopNodes, n_rows: int) -> TopResults:
        """At least the first `n_rows` rows, in place if the host has them."""
        found = self._in_place(top)
        if found is not None:
            return found
        n_most = self.logits.ne[1]
        read = [np.empty(n_rows * t.nbytes // n_most, np.uint8) for t in top]
        for t, out in zip(top, read, strict=True):
            tensor_read(t, out)
        sums, ids, logits = read
        return TopResults.of(ids, logits, sums, n_rows)

    def _in_place(self, top: TopNodes) -> TopResults | None:
        """All rows; None if the host does not have them."""
        ids = buffer_of(top.ids).in_place(top.ids)
        known = self._known.get(id(ids))
        if known is not None:  # it keeps the ids, so they are the same object
            return known
        logits = buffer_of(top.logits).in_place(top.logits)
        sums = buffer_of(top.sums).in_place(top.sums)
        if ids is None or logits is None or sums is None:
            return None
        if len(self._known) > 1:  # results have other places now
            self._known.clear()
        known = self._known[id(ids)] = TopResults.of(ids, logits, sums, self.logits.ne[1])
        return known

    def _copied(self, found: TopResults, n_rows: int) -> TopRows:
        """A copy of the first rows, in the same memory each time."""
        rows = self._rows
        if rows is None:
            shape = (self.logits.ne[1], found.ids.shape[1])
            rows = self._rows = TopRows(np.empty(shape, np.int32), np.empty(shape, np.float32))
        rows = rows if n_rows == len(rows) else rows[:n_rows]
        np.copyto(rows.ids, found.ids[:n_rows])
        np.copyto(rows.logits, found.logits[:n_rows])
        return rows

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
        if 2 * n_top < n_vocab
        and all(map(device.supports_op, TopNodes.of(logits, n_top, mask_input(logits))))
    )


def top_size(n_tops: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the smallest size that serves the most outputs, or 0 if no size serves any.

    Args:
        n_tops: the number of largest logits that each output needs; 0 for all, which no size
            serves.
        sizes: ascending.
    """
    most = max(n_tops) if n_tops else 0
    if most > sizes[-1]:
        most = max((n for n in n_tops if n <= sizes[-1]), default=0)
    return sizes[bisect_left(sizes, most)] if most else 0


def mask_input(logits: Tensor) -> Tensor:
    """Return the mask of each row of logits: I32 [n_words, n_outputs], not allocated."""
    ne = (-(-logits.ne[0] // 32), logits.ne[1])
    return Tensor(GGMLType.I32, ne, name="inp_mask").set_late()


def _n_allowed(ids: I32Array, mask: Mask) -> int:
    """The number of tokens that a mask allows. TOP_K puts the others last."""
    return int(np.count_nonzero(mask[ids >> 5] >> (ids & 31).astype(np.uint32) & 1))


def _rows(tensor: Tensor, first: int, n: int) -> Tensor:
    """A view of rows of an allocated tensor [n_vocab, n_rows]."""
    ne, offset = (tensor.ne[0], n), first * tensor.nb[1]
    view = Tensor(tensor.type, ne, op=Op.VIEW, src=(tensor,), view_src=tensor, view_offs=offset)
    view_init(view)
    return view
