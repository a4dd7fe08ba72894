"""The bytes of a reply on their way to a client, through the loss of replicas.

What a replica has sent is passed on once it is useful without the rest: whole events of a stream,
and other replies as a whole. So a reply of which nothing was passed on can begin again elsewhere.
A stream of which a part was passed on can begin again too, if the other replica generates the same
events: those that the client has are left out, and the new ones get the id of the old ones. Knows
no Ray and no sockets. Tested by tests/cluster/test_cluster_streams.py.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Final

from ..server.broken_streams import END_OF_EVENT, ENDS, WholeEvents
from ..server.sent_tokens import tokens_in

N_WHOLE: Final = 4 * 1024**2  # bytes of a reply that is kept until it is whole
# what differs in equal replies: ids and times of their begin
_MARKS: Final = re.compile(rb'"(?:id|call_id|created|created_at)":("[^"]+"|\d+)')
PINGS: Final = (b":", b"event: ping\n")  # begins of events that say only that the stream lives


class PassedBytes:
    """What of a reply may be passed on now."""

    def __init__(self, content_type: str) -> None:
        self.is_stream = content_type in ENDS
        self._whole = WholeEvents(ENDS.get(content_type, END_OF_EVENT))
        self._kept = bytearray()
        self._is_long = False

    def add(self, part: bytes) -> bytes:
        """More bytes of the reply. Return what to pass on."""
        if self.is_stream:
            return self._whole.add(part)
        if self._is_long:
            return part
        self._kept += part
        if len(self._kept) <= N_WHOLE:
            return b""
        self._is_long = True
        return self.rest()

    def rest(self) -> bytes:
        """What to pass on at the end of the reply."""
        found = bytes(self._kept)
        self._kept.clear()
        return found


class Resumed:
    """A stream of events that may begin again on another replica."""

    def __init__(self) -> None:
        self.n_passed = 0  # events that the client has
        self.tokens = array("i")  # of the text so far; those of the last events may be missing
        self._n_tokens = 0  # those of the current replica
        self._n_left_out = 0  # events of the new replica that the client has, so far
        self._marks: dict[bytes, None] = {}  # those that the client has, in their order
        self._new_marks: dict[bytes, None] = {}  # those of the new replica instead
        self._other_marks: list[tuple[bytes, bytes]] = []  # pairs of them that differ

    def begin_again(self) -> None:
        """The following events are of another replica."""
        self._n_left_out = self._n_tokens = 0
        self._new_marks, self._other_marks = {}, []

    @property
    def is_behind(self) -> bool:
        """True if the new replica has not written all events that the client has."""
        return self._n_left_out < self.n_passed

    def add(self, events: bytes) -> bytes:
        """Whole events. Return those that the client does not have."""
        found = []
        for event in events.split(END_OF_EVENT)[:-1]:
            if event.startswith(PINGS):
                tokens = tokens_in(event)
                if tokens is None:
                    found.append(event)
                else:
                    self._add_tokens(tokens)
                continue
            self._n_left_out += 1
            if self._n_left_out <= self.n_passed:
                self._new_marks.update(dict.fromkeys(_MARKS.findall(event)))
                if not self.is_behind:
                    pairs = zip(self._new_marks, self._marks, strict=False)
                    self._other_marks = [(new, old) for new, old in pairs if new != old]
                continue
            known = self._with_old_marks(event)
            self._marks.update(dict.fromkeys(_MARKS.findall(known)))
            found.append(known)
            self.n_passed += 1
        return b"".join(event + END_OF_EVENT for event in found)

    def _add_tokens(self, tokens: Sequence[int]) -> None:
        self._n_tokens += len(tokens)
        n_new = self._n_tokens - len(self.tokens)
        if n_new > 0:
            self.tokens.extend(tokens[-n_new:])

    def _with_old_marks(self, event: bytes) -> bytes:
        """An event of the new replica with the ids that the client knows."""
        for new, old in self._other_marks:
            event = event.replace(new, old)
        return event
