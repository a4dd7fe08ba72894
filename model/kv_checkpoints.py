"""The states that the prefix tree has: slots of certain lengths, each at the node with that length.

A state serves exactly one length, so a prefix with states is reused up to the longest length that
has one. Slots that only the tree refers to count as free; the least recently used are evicted
first. Knows no sequences but their slots. Tested by tests/model/test_kv_prefix.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from .state_slots import SlotPool, SlotRef

if TYPE_CHECKING:
    from .kv_prefix import Node

STEP: Final = 512  # tokens between states of a prompt, at its end; the distances double
BEFORE_END: Final = 8  # tokens at the end of a prompt that the next one of a chat may lack


class Checkpoints:
    """The slots that a tree's nodes have, by length: `Node.states`."""

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        # by slot, the least recently used first
        self._by_age: OrderedDict[int, tuple[Node, int]] = OrderedDict()

    def __len__(self) -> int:
        """The number of states."""
        return len(self._by_age)

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
                self._by_age[slot] = owner, length
                changed.append(owner)
        return changed

    def move(self, node: Node, to: Node) -> None:
        """Give the states of a node to one whose tokens begin with its tokens."""
        for length, slot in node.states.items():
            to.states[length] = slot
            self._by_age[slot] = to, length
        node.states = {}

    def remove(self, node: Node) -> None:
        """Remove all states of a node."""
        for slot in node.states.values():
            del self._by_age[slot]
            self._pool.uncache(slot)
        node.states = {}

    def touch(self, slot: int) -> None:
        """Mark a state as used."""
        if slot in self._by_age:
            self._by_age.move_to_end(slot)

    def evict(self, n: int) -> list[Node]:
        """Free `n` slots, the least recently used first. Return the nodes that had them."""
        idle = (slot for slot in self._by_age if self._pool.is_evictable(slot))
        nodes = []
        for slot in list(islice(idle, n)):
            node, length = self._by_age.pop(slot)
            del node.states[length]
            self._pool.uncache(slot)
            nodes.append(node)
        return nodes


def prompt_marks(begin: int, n_tokens: int, n_known: int, page_size: int) -> frozenset[int]:
    """Return the lengths of a prompt whose states are worth keeping.

    These are: all but the last token, for the same prompt again; a page's end shortly before, for
    the next turn of a chat; multiples of `STEP` at doubling distances from the end; and the end of
    what the prompt has in common with an earlier one, as others may begin with that too.

    Args:
        begin: tokens that are not evaluated.
        n_tokens: tokens of the prompt.
        n_known: tokens that the prefix tree has, with or without a state.
        page_size: tokens of a page.
    """

    def at_page(n: int) -> int:
        return max(n, 0) // page_size * page_size

    marks = {n_tokens - 1, at_page(n_tokens - BEFORE_END), at_page(n_known)}
    distance = STEP
    while distance < n_tokens - begin:
        marks.add((n_tokens - distance) // STEP * STEP)
        distance *= 2
    return frozenset(n for n in marks if begin < n < n_tokens)
