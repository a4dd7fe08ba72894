"""The states that the prefix tree has: slots of certain lengths, each at the node with that length.

A state serves exactly one length, so a prefix with states is reused up to the longest length that
has one. A state is worth the tokens after the next shorter one: without it, these are evaluated
again. Slots that only the tree refers to count as free; the least valuable are evicted first
(`aging`). Knows no sequences but their slots. Tested by tests/model/test_kv_prefix.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from .aging import Aging
from .state_slots import SlotPool, SlotRef

if TYPE_CHECKING:
    from .kv_prefix import Node

STEP: Final = 512  # tokens between states of a prompt; distances double where memory is short
BEFORE_END: Final = 8  # tokens at the end of a prompt that the next one of a chat may lack


class _Place(NamedTuple):
    """Where a slot is in the tree, and how many tokens are evaluated again without it."""

    node: Node
    length: int
    n_saved: int


class Checkpoints:
    """The slots that a tree's nodes have, by length: `Node.states`."""

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._places = dict[int, _Place]()  # of each slot
        self._aging = Aging[int]()

    def __len__(self) -> int:
        """The number of states."""
        return len(self._places)

    def longest(self, path: Sequence[Node], n: int) -> SlotRef:
        """Return the state with the greatest length up to `n`; slot 0 if there is none."""
        for node in reversed(path):
            lengths = [length for length in node.states if length <= n]
            if lengths:
                return SlotRef(max(lengths), node.states[max(lengths)])
        return SlotRef(0, 0)

    def best(self, parent: Node, children: Iterable[tuple[Node, int]]) -> tuple[Node | None, int]:
        """Return the child with the longest usable state, and its length: each has a number of
        usable tokens. Without such a child, return None and the parent's end."""
        best, most = None, parent.end
        for child, n in children:
            length = self.longest((child,), parent.end + n).length
            if length > most:
                best, most = child, length
        return best, most

    def add(self, node: Node, states: Iterable[SlotRef]) -> list[Node]:
        """Add states to the nodes with their lengths, `node` or ones before it. Return these nodes.

        Slots must have references. States that the nodes have already are left out.
        """
        changed = []
        for length, slot in states:
            owner = node
            while owner.parent is not None and owner.parent.end >= length:
                owner = owner.parent
            if slot and length not in owner.states:
                self._pool.cache(slot)
                owner.states[length] = slot
                self._use(slot, owner, length)
                changed.append(owner)
        return changed

    def move(self, node: Node, to: Node) -> None:
        """Give the states of a node to one whose tokens begin with its tokens."""
        for length, slot in node.states.items():
            to.states[length] = slot
            self._places[slot] = self._places[slot]._replace(node=to)
        node.states = {}

    def remove(self, node: Node) -> None:
        """Remove all states of a node."""
        for length in list(node.states):
            self._drop(node, length)

    def touch(self, slot: int) -> None:
        """Mark a state as used."""
        if slot in self._places:
            self._use(slot, *self._places[slot][:2])

    def n_saved(self, slot: int) -> int:
        """Return the tokens after the next shorter state, at the last use of this one."""
        return self._places[slot].n_saved

    def evict(self, keep: Callable[[Node, int], None]) -> Node | None:
        """Free the least valuable slot that no sequence has, after a call of `keep` with its node
        and length. Return the node; None if there is no such slot."""
        slot = self._aging.pop(self._pool.is_evictable)
        if slot is None:
            return None
        node, length, _ = self._places[slot]
        keep(node, length)
        self._drop(node, length)
        return node

    def _use(self, slot: int, node: Node, length: int) -> None:
        shorter, at = [n for n in node.states if n < length], node
        while not shorter and at.parent is not None:
            at = at.parent
            shorter = list(at.states)
        n_saved = length - max(shorter, default=0)
        self._places[slot] = _Place(node, length, n_saved)
        self._aging.use(slot, n_saved)

    def _drop(self, node: Node, length: int) -> None:
        slot = node.states.pop(length)
        del self._places[slot]
        self._aging.remove(slot)
        self._pool.uncache(slot)


def prompt_marks(
    begin: int,
    n_tokens: int,
    n_known: int,
    page_size: int,
    *,
    messages: Collection[int] = (),
    n_slots: int = 0,
) -> tuple[int, ...]:
    """Return the lengths of a prompt whose states are worth keeping, the most valuable first.

    These are: a page's end shortly before the end, for the next turn of a chat; the end of what the
    prompt has in common with an earlier one, as others may begin with that too; all but the last
    token, for the same prompt again; and multiples of `STEP` at doubling distances from the end. As
    far as there are slots, also the ends of messages, and all other multiples of `STEP`, those near
    the end first. All but the last token's are at ends of pages.

    Args:
        begin: tokens that are not evaluated.
        n_tokens: tokens of the prompt.
        n_known: tokens that the prefix tree has, with or without a state.
        page_size: tokens of a page.
        messages: the lengths at the ends of messages.
        n_slots: states that fit into memory before another one leaves it.
    """

    def at_page(n: int) -> int:
        return max(n, 0) // page_size * page_size

    marks = [at_page(n_tokens - BEFORE_END), at_page(n_known), n_tokens - 1]
    distance = STEP
    while distance < n_tokens - begin:
        marks.append((n_tokens - distance) // STEP * STEP)
        distance *= 2
    found = dict.fromkeys(n for n in marks if begin < n < n_tokens)
    every_step = range(n_tokens // STEP * STEP, begin, -STEP)
    for n in (*map(at_page, sorted(messages, reverse=True)), *every_step):
        if len(found) < n_slots and begin < n < n_tokens:
            found[n] = None
    return tuple(found)
