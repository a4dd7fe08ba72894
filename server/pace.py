"""The pace of a client's requests: so many a second, and a few more at once.

Knows no request and no clock. The formula is the generic cell rate algorithm (ITU-T I.371).
Tested by tests/server/test_request_pace.py.
"""

from __future__ import annotations

from typing import Final

N_PER_SECOND: Final = 250.0  # each costs the server up to half a millisecond of processor time
N_AT_ONCE: Final = 250
N_CLIENTS_MAX: Final = 4096  # more than these are forgotten when they are idle


class RequestPace:
    """Says how long a client's next request has to wait."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}  # when each client's requests so far are paid for

    def __len__(self) -> int:
        """Number of clients that it remembers."""
        return len(self._due)

    def delay(self, client: str, now: float) -> float:
        """Count a request. Return how many seconds it should wait; 0 if the client is within its
        pace."""
        if len(self._due) >= N_CLIENTS_MAX:
            self._due = {name: due for name, due in self._due.items() if due > now}
        due = max(self._due.get(client, now), now) + 1 / N_PER_SECOND
        self._due[client] = due
        return max(0.0, due - now - N_AT_ONCE / N_PER_SECOND)
