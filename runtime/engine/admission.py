"""Lets waiting jobs begin: each needs a place, pages, its grammar and the files of its prefix.

Knows no batches and no context. Tested by tests/runtime/test_engine*.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Final, Protocol

from . import policy
from .grammar_queue import GrammarQueue
from .prefixes import Found, Prefixes
from .queue import JobQueue
from .shares import Owner
from .ticket import Ticket

AWAITED_S: Final = 0.1  # the longest wait for a grammar or a file before the queue is asked again


class Running(Protocol):
    """The running jobs, and what happens when one begins."""

    @property
    def running(self) -> Sequence[Ticket]:
        """The running jobs, oldest first."""

    @property
    def is_in_flight(self) -> bool:
        """True if the device may still compute tokens of a job."""

    def begin(self, ticket: Ticket, found: Found) -> None:
        """Let a job run, from the prefix that was found for it."""

    def preempt(self, ticket: Ticket) -> None:
        """Let a running job wait again: its place and its pages are free."""

    def synchronize(self) -> None:
        """Wait until nothing is in flight. If that failed, prefixes are shorter."""


class Admission:
    """Decides when the jobs of a queue begin. Used by the engine's thread only."""

    def __init__(
        self, jobs: Running, queue: JobQueue, prefixes: Prefixes, n_parallel: int, page_size: int
    ) -> None:
        """At most `n_parallel` jobs run; a page has `page_size` positions."""
        self._jobs = jobs
        self._queue = queue
        self._prefixes = prefixes
        self._n_parallel = n_parallel
        self._page_size = page_size
        self._grammars = GrammarQueue()

    def has_news(self) -> bool:
        """True if the queue may change which jobs run. It does not if all places are taken, and no
        job has to leave."""
        if not self._queue.has_changes():
            return False
        if not self._queue.only_waits or not self._is_full():
            return True
        ticket = self._queue.first()
        return ticket is not None and policy.leaves_for(ticket, self._jobs.running) is not None

    def admit(self) -> None:
        """Let waiting jobs begin.

        A job takes all pages of its prompt at once, except in pools with windows: these have pages
        for every step of `n_parallel` jobs. Others leave if their places or pages are needed, see
        `policy.leaves_for`. A job whose grammar or prefix is not ready lets others go first.
        """
        jobs = self._jobs
        skipped: set[Owner] = set()
        awaited = list[Future[Any]]()
        while (ticket := self._queue.first(skipped)) is not None:
            is_full = self._is_full()
            other = policy.leaves_for(ticket, jobs.running)
            if (is_full and other is None) or len(skipped) > self._n_parallel:
                break
            if later := self._awaited(ticket):
                awaited += later
                skipped.add(ticket.owner)
                continue
            if jobs.running and other is None and self._prefixes.lacks(ticket):
                break
            found = self._prefixes.find(ticket)
            seq = found.seq
            fits = seq.can_append(len(ticket.tokens) + 1 - seq.length)
            waits = policy.must_wait(ticket, found.length, fits, jobs.running, self._page_size)
            if waits and fits:
                seq.free()
                skipped.add(ticket.owner)
            elif waits or is_full:
                seq.free()
                if other is None:
                    self._prefixes.lack(ticket)
                    break
                jobs.preempt(other)
            elif jobs.is_in_flight and (seq.last_is_shared or found.restorable):
                # what is in flight may write the page to be copied, or use those to be taken
                seq.free()
                jobs.synchronize()
            else:
                jobs.begin(ticket, found)
        if awaited and not policy.has_work(jobs.running):
            wait(awaited, AWAITED_S, FIRST_COMPLETED)

    def close(self) -> None:
        """Compile no more grammars."""
        self._grammars.close()

    def _is_full(self) -> bool:
        return len(self._jobs.running) >= self._n_parallel

    def _awaited(self, ticket: Ticket) -> Sequence[Future[Any]]:
        """What a job waits for, while others go on: its grammar and the files of its prefix."""
        both = self._grammars.awaited(ticket), self._prefixes.awaited(ticket)
        return [future for future in both if future is not None]
