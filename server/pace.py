"""The pace of a client's requests beside texts of other clients: so many a second, and a few more
at once.

Each request costs the event loop processor time, which the texts of others would lack. Knows no
request and no clock. The formula is the generic cell rate algorithm (ITU-T I.371).
Tested by tests/server/test_request_pace.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

N_PER_SECOND: Final = 60.0  # each costs up to half a millisecond
N_AT_ONCE: Final = 60
N_CLIENTS_MAX: Final = 4096  # more than these are forgotten when they are idle


class RequestPace:
    """Says how long a client's next request has to wait."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}  # when each client's requests so far are paid for
        self._n_texts: Counter[str] = Counter()  # requests of each client that generate

    def __len__(self) -> int:
        """Number of clients that it remembers."""
        return len(self._due)

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

    def delay(self, client: str, now: float) -> float:
        """Count a request beside texts of others. Return how many seconds it should wait; 0 if the
        client is within its pace, or if no other client has texts."""
        if not self.has_others(client):
            return 0.0
        if len(self._due) >= N_CLIENTS_MAX:
            self._due = {name: due for name, due in self._due.items() if due > now}
        due = max(self._due.get(client, now), now) + 1 / N_PER_SECOND
        self._due[client] = due
        return max(0.0, due - now - N_AT_ONCE / N_PER_SECOND)
