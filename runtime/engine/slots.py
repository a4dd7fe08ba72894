"""The slots of a server's clients: numbers of running jobs, and the tokens of their last ones.

The engine has no slots: any job may reuse any prefix. A number only names what a job left in the
pool, so that a client can save it. A job gets the slot that it names, if that is free, else the
first free one. Used by the engine's thread; others may read `last` and `ended`.
Tested by tests/runtime/test_engine_slots.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...model.kv_prefix import PrefixIdentity
from .ticket import RunningJob


class SlotContent(NamedTuple):
    """The tokens that the last job of a slot evaluated, and their identity."""

    tokens: Sequence[int]
    identity: PrefixIdentity


class Slots:
    """`n` slots, numbered from 0 on."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.last = dict[int, SlotContent]()
        self.ended = dict[int, RunningJob]()  # the last job of a slot, as it ended
        self._taken = set[int]()

    def take(self, wanted: int) -> int:
        """Return a free slot: `wanted`, modulo their number, if it is free and not negative."""
        if wanted >= 0 and wanted % self.n not in self._taken:
            slot = wanted % self.n
        else:
            slot = next(i for i in range(self.n) if i not in self._taken)
        self._taken.add(slot)
        return slot

    def leave(self, slot: int) -> None:
        """Free the slot of a job that goes on later."""
        self._taken.discard(slot)

    def end(self, job: RunningJob, content: SlotContent) -> None:
        """Free the slot of a job that has ended, and keep what it leaves."""
        self.leave(job.slot)
        self.last[job.slot] = content
        self.ended[job.slot] = job
