"""The states of sequences in layers that keep some: which slot has them, of how many tokens.

The states of a sequence in all layers are one *slot*: each state tensor has a column of that
number. Slots are pages of one cell in a pool, with counted references; slot 0 is scratch for
padding tokens. A token reads one slot and writes the same or another one. So a state is kept
without a copy: the next token reads its slot, and writes to another. A slot with several references
is never written.

Knows no tensors and no tokens. Not thread-safe. Tests: tests/model/test_state_slots.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import RequestError
from .kv_pages import PagePool

I32Array = npt.NDArray[np.int32]

NO_SLOT: Final = -1  # is read by the first token of a sequence: all states are zero
SCRATCH_SLOT: Final = 0
EACH: Final = 2  # slots of a sequence: one that it reads, and one that it writes


class SlotRef(NamedTuple):
    """A slot with the states of the first `length` tokens of a sequence; slot 0: of none."""

    length: int
    slot: int


class SlotPool(PagePool):
    """The slots of `n_seqs` sequences, and `n_kept` more for states that are kept.

    A sequence always gets a slot to write: it has references to two at most, besides those it
    keeps, and sequences together keep `n_kept` at most.

    Attributes:
        n_keepable: slots that sequences may still keep.
        n_each: slots that a sequence keeps while it generates, so that others have some.
    """

    def __init__(self, n_seqs: int, n_kept: int = 0) -> None:
        super().__init__(EACH * n_seqs + n_kept, page_size=1)
        self.n_keepable = n_kept
        self.n_each = n_kept // n_seqs
        self.name = "the slots of states"

    def add(self, slot: int) -> None:
        """Add a reference to a slot."""
        self.share(np.array([slot], np.int32))

    def drop(self, slot: int) -> None:
        """Remove a reference to a slot."""
        self.release(np.array([slot], np.int32))


class SequenceStates:
    """The states of one sequence: those after its last computed token, and earlier ones it keeps.

    Attributes:
        length: the number of tokens whose states `slot` has.
        slot: 0: none; the states are zero.
        marks: lengths whose states are kept as soon as they are computed, while slots are free; the
            most valuable first.
        kept: the slots of such lengths, each with a reference.
        n_known: tokens that the prefix tree had when it was searched, with or without a state.
        rolls: lengths of which the latest one is kept, after all marks.
    """

    def __init__(self, pool: SlotPool) -> None:
        self.pool = pool
        self.length = 0
        self.slot = 0
        self.marks: Collection[int] = ()
        self.kept: dict[int, int] = {}
        self.n_known = 0
        self.rolls = range(0)
        self._rolled = 0  # the length that `rolls` keeps
        self._read = SlotRef(0, 0)  # what the last run began with, if it wrote to other slots
        self._guessed = range(0)  # lengths that `guess` has reserved slots for

    def run(self, begin: int, end: int, *, can_go_back: bool = False) -> I32Array:
        """Move on to the states after the tokens begin..end-1, which are computed next. If it
        `can_go_back`, `truncate` may go back to `begin` until the next run.

        Returns:
            int32 [end - begin, 2]: the slot that each token reads, and the one it writes.

        Raises:
            RequestError: the states are not those before `begin`.
            OutOfMemoryError: there are more sequences than the pool is made for.
        """
        if begin != self.length:
            raise RequestError(
                f"position {begin} of a sequence with the states of {self.length} tokens: states "
                "have no others"
            )
        self._drop_read()
        slots = np.empty((end - begin, 2), np.int32)
        before = self.slot or NO_SLOT
        marks = [n for n in self.marks if begin < n <= end][: self.pool.n_keepable]
        for first, last in self._parts(begin, end, marks):
            slot = self._writable(can_go_back)
            part = slots[first - begin : last - begin]
            part[:] = slot
            part[0, 0] = before
            before, self.length = slot, last
            if last in marks or last in self._guessed or last in self.rolls:
                self._keep()
        return slots

    def guess(self, begin: int, n: int) -> None:
        """Keep the lengths begin..begin+n-1, for a `truncate` to any of them. It ends the guesses.

        At least `n` slots must be keepable.
        """
        assert not self._guessed, "guesses are not over"
        assert n <= self.pool.n_keepable, f"{n} guesses, {self.pool.n_keepable} slots"
        self.pool.n_keepable -= n
        self._guessed = range(begin, begin + n)

    def _parts(self, begin: int, end: int, marks: Collection[int]) -> Iterator[tuple[int, int]]:
        """Cut begin..end after each length to keep."""
        cuts = sorted(n for n in {*marks, *self._guessed} if begin < n < end)
        return zip([begin, *cuts], [*cuts, end], strict=True)

    def _writable(self, can_go_back: bool) -> int:
        """Return the slot for the next tokens: the present one, or another if that is shared, or
        one to go back to."""
        is_own = self.slot and not self.pool.is_shared(self.slot)
        if is_own and (self._read.slot or not can_go_back):
            return self.slot
        (slot,) = self.pool.take(1)
        if self._read.slot:  # within a run: the slot is kept
            self.pool.drop(self.slot)
        else:
            self._read = SlotRef(self.length, self.slot)
        self.slot = slot
        return slot

    def _keep(self) -> None:
        is_guessed = self.length in self._guessed
        if self.length in self.rolls and not is_guessed:
            if self._guessed:
                return  # `truncate` may go back before it
            self._roll(self.length)
        if (is_guessed or self.pool.n_keepable) and self.length not in self.kept:
            self.pool.n_keepable -= not is_guessed
            self.pool.add(self.slot)
            self.kept[self.length] = self.slot

    def _roll(self, n: int) -> None:
        """Keep the earlier one of `rolls` no longer, nor a mark if these are too many."""
        self._forget(self._rolled)
        marked = [length for length in self.kept if length != n]
        if marked and len(marked) >= self.pool.n_each:
            self._forget(min(marked))
        self._rolled = n

    def _forget(self, n: int) -> None:
        if slot := self.kept.pop(n, 0):
            self.pool.n_keepable += 1
            self.pool.drop(slot)

    def take_kept(self, end: int) -> list[SlotRef]:
        """Return what is kept of lengths up to `end`, and keep it no longer.

        The caller drops the references.
        """
        assert not self._guessed, "guesses are not over"
        found = [SlotRef(n, self.kept.pop(n)) for n in sorted(self.kept) if n <= end]
        self.pool.n_keepable += len(found)
        return found

    def share(self, state: SlotRef) -> None:
        """Begin with a slot of another sequence, or of the prefix cache. This one has none."""
        assert not self.slot, "the sequence has states"
        self.length, self.slot = state
        if self.slot:
            self.pool.add(self.slot)

    def restore(self, n: int) -> None:
        """Take a slot, to which the caller writes the states after the first `n` tokens."""
        assert not self.slot, "the sequence has states"
        (self.slot,) = self.pool.take(1)
        self.length = n

    def at(self, n: int) -> SlotRef:
        """Return the states of the first `n` positions, or of all computed ones if these are
        fewer.

        Raises:
            RequestError: they are not kept.
        """
        if n >= self.length:
            return SlotRef(self.length, self.slot)
        if self._read.slot and n == self._read.length:
            return self._read
        if n not in (0, *self.kept):
            raise RequestError(
                f"length {n} of a sequence with the states of {self.length} tokens: those of fewer "
                "are not kept"
            )
        return SlotRef(n, self.kept.get(n, 0))

    def truncate(self, n: int) -> None:
        """Go back to the states of the first `n` positions. Keep no later ones, and no guesses.

        Raises:
            RequestError: see `at`; nothing has changed.
        """
        state = self.at(n)
        if state.slot != self.slot:
            if state.slot:
                self.pool.add(state.slot)
            self.pool.drop(self.slot)
        self._drop_read()
        self.length, self.slot = state
        left = [length for length in self.kept if length > n or length in self._guessed]
        rolled = max((length for length in left if length <= n and length in self.rolls), default=0)
        if rolled:  # a guess that came true
            left.remove(rolled)
        self.pool.n_keepable += sum(length not in self._guessed for length in left)
        for length in left:
            self.pool.drop(self.kept.pop(length))
        self.pool.n_keepable += len(self._guessed)
        self._guessed = range(0)
        if rolled:
            self.pool.n_keepable -= 1
            self._roll(rolled)
        if self.length in self.rolls:
            self._keep()

    def _drop_read(self) -> None:
        if self._read.slot:
            self.pool.drop(self._read.slot)
        self._read = SlotRef(0, 0)
