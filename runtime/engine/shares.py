"""Whose turn it is: clients share an engine, and requests of a client share its part.

The next job is of the client with the fewest running jobs, and among these of the one that used the
fewest tokens; then of its request by the same rule; then the first in order. A client that comes
back starts where the busy one is that used least: idle time earns nothing, and what it used while
others waited is not forgotten.

Knows no clock, no thread and no engine. Tested by tests/runtime/test_shares.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

N_IDLE_MAX: Final = 256  # clients without jobs whose used tokens are remembered


class Owner(NamedTuple):
    """Who a job is for. Without a client, all jobs are one client's."""

    client: str = ""
    request: int = 0


NOBODY: Final = Owner()  # in particular


class Owned(Protocol):
    """What a job's turn depends on."""

    @property
    def owner(self) -> Owner:
        """Who it is for."""

    @property
    def paused(self) -> bool:
        """True if it takes no turn for now."""


Job = TypeVar("Job", bound=Owned)


@dataclass(slots=True, eq=False)
class Share(Generic[Job]):
    """The part of a client, or of a request among those of its client.

    Attributes:
        used: its tokens, or those of the others before it came.
        n_waiting, n_running: its jobs.
        parts: the requests of a client.
        jobs: the waiting jobs of a request, in order.
    """

    used: int = 0
    n_waiting: int = 0
    n_running: int = 0
    parts: dict[str | int, Self] = field(default_factory=dict)
    jobs: deque[Job] = field(default_factory=deque)

    @property
    def is_idle(self) -> bool:
        """True if it has no jobs."""
        return self.n_waiting == self.n_running == 0

    def enter(self, name: str | int) -> Self:
        """The part with this name. A part that was idle starts behind all others of its rank."""
        part = self.parts.get(name)
        if part is not None and not part.is_idle:
            return part
        least = min((one.used for one in self.parts.values() if not one.is_idle), default=None)
        idle = [key for key, one in self.parts.items() if one.is_idle]
        for key in idle if least is None else idle[:-N_IDLE_MAX]:
            del self.parts[key]
        part = self.parts.pop(name, None) or type(self)()
        part.used = max(part.used, least or 0)
        self.parts[name] = part
        return part

    def in_order(self) -> list[Self]:
        """The parts with waiting jobs: that with the next turn first."""
        waiting = [part for part in self.parts.values() if part.n_waiting]
        waiting.sort(key=lambda part: (part.n_running, part.used))
        return waiting


class Turns(Generic[Job]):
    """The waiting jobs of all clients, and how much each client runs and has used."""

    def __init__(self) -> None:
        self._all: Share[Job] = Share()

    def __len__(self) -> int:
        """Number of waiting jobs."""
        return self._all.n_waiting

    def __iter__(self) -> Iterator[Job]:
        """All waiting jobs, by client and request."""
        for client in self._all.parts.values():
            for request in client.parts.values():
                yield from request.jobs

    def n_waiting(self, client: str) -> int:
        """Number of waiting jobs of a client."""
        share = self._all.parts.get(client)
        return 0 if share is None else share.n_waiting

    def add(self, job: Job) -> None:
        """Add a job that waits, behind the others of its request."""
        self._entered(job, n_waiting=1).jobs.append(job)

    def put_back(self, job: Job) -> None:
        """Let a running job wait, before the others of its request."""
        self._entered(job, n_waiting=1, n_running=-1).jobs.appendleft(job)

    def start(self, job: Job) -> None:
        """Let a waiting job run."""
        self._entered(job, n_waiting=-1, n_running=1).jobs.remove(job)

    def remove(self, job: Job) -> None:
        """Remove a waiting job."""
        self._entered(job, n_waiting=-1).jobs.remove(job)
        self._forget(job.owner)

    def end(self, job: Job) -> None:
        """Remove a running job."""
        self._entered(job, n_running=-1)
        self._forget(job.owner)

    def charge(self, owner: Owner, n_tokens: int) -> None:
        """Count tokens that an owner with jobs has used."""
        client = self._all.parts[owner.client]
        client.used += n_tokens
        client.parts[owner.request].used += n_tokens

    def first(self, skipped: Collection[Owner] = ()) -> Job | None:
        """The waiting job whose turn it is. It is neither paused nor of an owner in `skipped`."""
        for client in self._all.in_order():
            for request in client.in_order():
                if request.jobs[0].owner not in skipped:
                    job = next((job for job in request.jobs if not job.paused), None)
                    if job is not None:
                        return job
        return None

    def _entered(self, job: Job, *, n_waiting: int = 0, n_running: int = 0) -> Share[Job]:
        """The share of a job's request. Counts more jobs of it."""
        client = self._all.enter(job.owner.client)
        request = client.enter(job.owner.request)
        for share in (self._all, client, request):
            share.n_waiting += n_waiting
            share.n_running += n_running
        return request

    def _forget(self, owner: Owner) -> None:
        """Remove the share of a request without jobs: it does not come back, unlike its client."""
        requests = self._all.parts[owner.client].parts
        if requests[owner.request].is_idle:
            del requests[owner.request]


def split(budget: int, wanted: Sequence[int]) -> list[int]:
    """Divide a budget evenly, but give none more than it wants. The first get what is left."""
    found = [0] * len(wanted)
    rest = [i for i, n in enumerate(wanted) if n > 0]
    while budget and rest:
        each = max(budget // len(rest), 1)
        for i in rest[:budget]:
            n = min(each, wanted[i] - found[i])
            found[i] += n
            budget -= n
        rest = [i for i in rest if found[i] < wanted[i]]
    return found
