"""The queue to the engine's thread: jobs, cancellations, calls, and the request to stop.

Any thread adds to it; only the engine's thread takes from it. Knows no context and no tokens.
Tested by tests/runtime/test_engine_limits.py and test_engine_faults.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from ...base.errors import ClientLimitError, ClosedError, OverloadedError, RequestError
from .shares import Owner, Turns
from .ticket import Ticket


class Call(NamedTuple):
    """Work for the engine's thread between two steps. `run` sets the future."""

    run: Callable[[], None]
    future: Future[Any]


class JobQueue:
    """Waiting jobs, whose clients take turns, and other work for the engine's thread.

    At most `max_waiting` jobs wait, and at most `max_client_waiting` of one client. Its lock also
    guards `settled` and `paused` of every ticket.
    """

    def __init__(self, max_waiting: int, max_client_waiting: int) -> None:
        self.max_waiting = max_waiting
        self.max_client_waiting = max_client_waiting
        self.closed = False
        self._changed = threading.Condition()
        self._turns: Turns[Ticket] = Turns()
        self._cancelled: list[Ticket] = []
        self._calls: list[Call] = []
        self._resumed = False  # since the thread began to wait

    def __len__(self) -> int:
        """Number of jobs that wait for their turn, or for pages."""
        return len(self._turns)

    # --- for any thread ---

    def check_room(self, client: str, n_jobs: int = 1) -> None:
        """Check that more jobs of a client may wait.

        Raises:
            ClosedError: the queue is closed.
            RequestError: so many may never wait.
            ClientLimitError: too many jobs of the client would wait.
            OverloadedError: too many jobs would wait.
        """
        if self.closed:
            raise ClosedError("the engine is closed")
        most = min(self.max_client_waiting, self.max_waiting)
        if n_jobs > most:
            raise RequestError(f"the request has {n_jobs} generations: at most {most} may wait")
        n_own, n_all = self._turns.n_waiting(client), len(self._turns)
        if n_own + n_jobs > self.max_client_waiting:
            raise ClientLimitError(
                f"{n_own} generations of this client are waiting, and the request has {n_jobs}: "
                f"at most {self.max_client_waiting} of a client may wait"
            )
        if n_all + n_jobs > self.max_waiting:
            raise OverloadedError(
                f"{n_all} generations are waiting, and the request has {n_jobs}: "
                f"at most {self.max_waiting} may wait"
            )

    def put(self, ticket: Ticket) -> None:
        """Add a job. Raises as `check_room`."""
        with self._changed:
            self.check_room(ticket.owner.client)
            self._turns.add(ticket)
            self._changed.notify()

    def put_call(self, call: Call) -> None:
        """Add work. Raises ClosedError if the queue is closed."""
        with self._changed:
            if self.closed:
                raise ClosedError("the engine is closed")
            self._calls.append(call)
            self._changed.notify()

    def cancel(self, ticket: Ticket) -> None:
        """Mark a job as cancelled. Does nothing if it is settled."""
        with self._changed:
            if not ticket.settled:
                ticket.settled = True
                self._cancelled.append(ticket)
                self._changed.notify()  # if it is paused, the thread may wait

    def pause(self, ticket: Ticket) -> None:
        """Give a job no more tokens until `resume`."""
        with self._changed:
            ticket.paused = True

    def resume(self, ticket: Ticket) -> None:
        """End the pause of a job."""
        with self._changed:
            ticket.paused = False
            self._resumed = True
            self._changed.notify()

    def close(self) -> None:
        """Accept nothing more, and wake the thread."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    # --- for the engine's thread ---

    def wait_for_work(self, is_idle: bool) -> bool:
        """If the engine is idle, wait for work. Return False if the queue is closed."""
        if is_idle:
            with self._changed:
                self._changed.wait_for(self._has_work)
                self._resumed = False
        return not self.closed

    def _has_work(self) -> bool:
        return bool(self._calls or self._cancelled or self._resumed or self.closed or self.first())

    def has_changes(self) -> bool:
        """True if there is work besides the running jobs."""
        return bool(self._turns or self._cancelled or self._calls)

    @property
    def only_waits(self) -> bool:
        """True if the only work besides the running jobs is to start others."""
        return not (self._cancelled or self._calls)

    def first(self, skipped: Collection[Owner] = ()) -> Ticket | None:
        """The job whose turn it is; None if there is none. See `Turns.first`."""
        with self._changed:
            return self._turns.first(skipped)

    def start(self, ticket: Ticket) -> None:
        """Let a waiting job run."""
        with self._changed:
            self._turns.start(ticket)

    def put_back(self, ticket: Ticket) -> None:
        """Let a preempted job wait, in front of the others of its request."""
        with self._changed:
            self._turns.put_back(ticket)

    def end(self, ticket: Ticket) -> None:
        """Note the end of a running job."""
        with self._changed:
            self._turns.end(ticket)

    def charge(self, used: Mapping[Owner, int]) -> None:
        """Count the tokens that each owner uses in a step."""
        with self._changed:
            for owner, n_tokens in used.items():
                self._turns.charge(owner, n_tokens)

    def settle(self, ticket: Ticket) -> bool:
        """Mark a ticket settled. Return True if it was not settled before."""
        with self._changed:
            was_open, ticket.settled = not ticket.settled, True
        return was_open

    def take_cancelled(self) -> list[Ticket]:
        """The jobs that were cancelled since the last call. They leave the queue."""
        with self._changed:
            cancelled, self._cancelled = self._cancelled, []
            for ticket in cancelled:
                if ticket.seq is None:
                    self._turns.remove(ticket)
        return cancelled

    def take_calls(self) -> list[Call]:
        """Remove and return the calls to run between two steps."""
        with self._changed:
            calls, self._calls = self._calls, []
        return calls

    def drain(self, running: list[Ticket]) -> tuple[list[Ticket], list[Call]]:
        """Close the queue. Settle and return all running and waiting jobs, and return all calls.

        They include cancelled jobs, whose sinks have not been notified yet.
        """
        with self._changed:
            self.closed = True
            waiting = list(self._turns)
            for ticket in waiting:
                self._turns.remove(ticket)
            tickets = [*running, *waiting]
            calls, self._calls = self._calls, []
            for ticket in tickets:
                ticket.settled = True
        return tickets, calls
