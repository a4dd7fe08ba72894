"""The pace of a client's requests beside texts of other clients: what they cost the event loop is
a small share of a core, and a little more at once.

The loop's work on requests takes processor time from the texts. How much a request takes depends
on the machine and its load, so it is measured. Knows no request and no clock. The formula is the
generic cell rate algorithm (ITU-T I.371).
Tested by tests/server/test_request_pace.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

# of a core, for the requests of one client: where the CPU computes texts, and where it does not
SHARE: Final = 0.05
SHARE_BESIDE_DEVICES: Final = 0.25
N_SECONDS_AT_ONCE: Final = 1.0  # a client may send the requests of so many seconds at once
N_CLIENTS_MAX: Final = 4096  # more than these are forgotten when they are idle
# the seconds of a request: before any is measured, at most, and how many count for the mean
N_SECONDS_FIRST: Final = 0.0005
N_SECONDS_MOST: Final = 0.005  # one with many texts takes longer, which says nothing about others
N_REQUESTS_MEAN: Final = 64


class Kind(Enum):
    """Requests with a pace of their own: so many a second are allowed however long they take."""

    POLL = 25.0  # of the server's health
    OTHER = 10.0


class RequestPace:
    """Says how long a client's next request has to wait.

    Attributes:
        share: the part of a core that the requests of one client get.
    """

    def __init__(self) -> None:
        self.share = SHARE
        # when the requests of each client and kind so far are paid for
        self._due: dict[tuple[str, Kind], float] = {}
        self._n_texts: Counter[str] = Counter()  # requests of each client that generate
        self._n_seconds = N_SECONDS_FIRST  # the mean processor time of a request

    def __len__(self) -> int:
        """Number of clients that it remembers, for each kind of requests."""
        return len(self._due)

    def n_per_second(self, kind: Kind) -> float:
        """The requests that a client may send in a second beside texts of others."""
        return max(self.share / self._n_seconds, kind.value)

    @contextmanager
    def generating(self, client: str) -> Iterator[None]:
        """A request of the client generates texts until the block ends."""
        self._n_texts[client] += 1
        try:
            yield
        finally:
            self._n_texts[client] -= 1
            if not self._n_texts[client]:
                del self._n_texts[client]

    def has_others(self, client: str) -> bool:
        """True if other clients have texts."""
        return len(self._n_texts) > (client in self._n_texts)

    def delay(self, client: str, now: float, kind: Kind = Kind.OTHER) -> float:
        """Count a request beside texts of others. Return how many seconds it should wait; 0 if the
        client is within its pace, or if no other client has texts."""
        if not self.has_others(client):
            return 0.0
        if len(self._due) >= N_CLIENTS_MAX:
            self._due = {key: due for key, due in self._due.items() if due > now}
        key = client, kind
        due = max(self._due.get(key, now), now) + 1 / self.n_per_second(kind)
        self._due[key] = due
        return max(0.0, due - now - N_SECONDS_AT_ONCE)

    def used(self, n_seconds: float) -> None:
        """Take the processor time of an ended request into the mean."""
        self._n_seconds += (min(n_seconds, N_SECONDS_MOST) - self._n_seconds) / N_REQUESTS_MEAN
