"""Positions of texts that are reserved, but may not be needed: of guesses, and of prepared steps.

Knows no context and no batch. Tested by tests/runtime/test_speculation.py and
test_engine_overlap.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .drafts.speculation import Guesses
from .ticket import Ticket


class Unsure:
    """The length of each text before the positions that it may not need."""

    def __init__(self) -> None:
        self._lengths: dict[Ticket, int] = {}

    def with_places(self, guesses: Iterable[Guesses]) -> Mapping[Ticket, Guesses]:
        """The guesses for which there are idle positions, now reserved."""
        found = {}
        for ticket, draft in guesses:
            assert ticket.seq is not None
            length = ticket.seq.length
            n = ticket.seq.advance_idle(len(draft.tokens))
            if n:
                self._lengths[ticket] = length
                found[ticket] = Guesses(ticket, draft._replace(tokens=draft.tokens[:n]))
        return found

    def reserve(self, ticket: Ticket) -> bool:
        """Reserve the next position of a text, if that takes no page from others."""
        assert ticket.seq is not None
        length = ticket.seq.length
        if not (ticket.seq.advance() or ticket.seq.advance_idle(1, guesses=False)):
            return False
        self._lengths[ticket] = length
        return True

    def again(self, ticket: Ticket, pos: int) -> None:
        """A text needs its last reserved position `pos` again, or has ended before it: a step
        evaluated another token there."""
        self._lengths[ticket] = pos
        if ticket.seq is not None and ticket.seq.states is not None:
            ticket.seq.states.truncate(pos)

    def need(self, ticket: Ticket) -> bool:
        """The next step needs the positions. Return False if there are none."""
        return self._lengths.pop(ticket, None) is not None

    def take_back(self, ticket: Ticket) -> None:
        """Give up the positions of a text that it does not need. Does nothing if there are none.
        Called before others share its tokens, too."""
        length = self._lengths.pop(ticket, None)
        if length is not None and ticket.seq is not None:
            ticket.seq.take_back(max(len(ticket.tokens) - 1, length))
