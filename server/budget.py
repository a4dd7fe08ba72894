"""The memory of all requests in flight, held against the server's limits.

What a request may take at most (server/cost.py) is reserved before it runs, until its handler
ends. Of the budget a client may hold half, so that one client alone cannot refuse all others.
Knows no request. Tested by tests/server/test_requests_budget.py.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..base.errors import ClientLimitError, OverloadedError, RequestError
from ..base.units import size_text

MIB: Final = 1024**2


class RequestsBudget:
    """What requests may take: `n_mib_each` one, `n_mib` all together. For any thread."""

    def __init__(self, n_mib_each: int, n_mib: int) -> None:
        self._n_max = n_mib * MIB
        self._n_client_max = self._n_max // 2
        self._n_each_max = min(n_mib_each * MIB, self._n_client_max)
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()  # bytes by client, those with any

    @property
    def n_held(self) -> int:
        """The bytes that are reserved."""
        with self._lock:
            return self._held.total()

    @contextmanager
    def reservation(self, client: str) -> Iterator[Reservation]:
        """A reservation for a request of a client; what it holds is free when the block ends."""
        reservation = Reservation(self, client)
        try:
            yield reservation
        finally:
            self._release(reservation)

    def take(self, reservation: Reservation, cost: int, *instead_of: Reservation) -> None:
        """Add to a reservation, see `Reservation.take`."""
        client = reservation.client
        with self._lock:
            if reservation.is_over:
                return
            freed = Counter[str]()
            for other in instead_of:
                freed[other.client] += other.n_held
            self._check(client, cost, freed)
            for other in instead_of:
                other.n_held = 0
            reservation.n_held += cost
            self._held[client] += cost
            self._held -= freed

    def shrink(self, reservation: Reservation, n_bytes: int) -> None:
        """Free all of a reservation but `n_bytes`."""
        with self._lock:
            if not reservation.is_over:
                self._held[reservation.client] -= reservation.n_held - n_bytes
                reservation.n_held = n_bytes

    def _check(self, client: str, cost: int, freed: Counter[str]) -> None:
        needs = f"the request may take {size_text(cost)} of memory"
        if cost > self._n_each_max:
            raise RequestError(
                f"{needs}, at most {size_text(self._n_each_max)} are allowed (--request-ram, and "
                "half of --requests-ram): set a smaller max_tokens, or send fewer prompts, "
                "texts, choices, probabilities or biases"
            )
        held = self._held[client] - freed[client]
        if held + cost > self._n_client_max:
            raise ClientLimitError(
                f"{needs}, and this client's running requests {size_text(held)}: at most "
                f"{size_text(self._n_client_max)} may be one client's (half of --requests-ram)"
            )
        total = self._held.total() - freed.total()
        if total + cost > self._n_max:
            raise OverloadedError(
                f"{needs}, and all running requests {size_text(total)}: at most "
                f"{size_text(self._n_max)} are allowed together (--requests-ram)"
            )

    def _release(self, reservation: Reservation) -> None:
        with self._lock:
            reservation.is_over = True
            self._held[reservation.client] -= reservation.n_held
            self._held += Counter()  # forgets clients with nothing


class Reservation:
    """The memory of one request. Made by `RequestsBudget.reservation`."""

    def __init__(self, budget: RequestsBudget, client: str) -> None:
        self.client = client
        self.n_held = 0  # bytes; this and the next belong to the budget's lock
        self.is_over = False
        self._budget = budget

    def take(self, cost: int, *instead_of: Reservation) -> None:
        """Reserve bytes, and free what the reservations `instead_of` hold. Nothing happens once the
        block is over: the client may have disconnected while a thread read its request.

        Raises:
            RequestError: no request may take so much.
            ClientLimitError: the client's requests hold too much now.
            OverloadedError: all requests hold too much now.
        """
        self._budget.take(self, cost, *instead_of)

    def shrink(self, n_bytes: int) -> None:
        """Keep `n_bytes` of what it holds."""
        self._budget.shrink(self, n_bytes)
