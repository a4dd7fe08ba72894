"""A fleet of simulated replicas, for bench_routing.py.

A replica runs steps as the engine does: a token of each running text, and a chunk of the prompts.
Its times are those of a model of eight billion weights on one GPU. No tokens exist, only numbers of
pages.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

from lamella.cluster.routing import TEXT_WORK

PAGE: Final = 32  # tokens
N_PAGES: Final = 3000  # of a replica's prefix tree
N_PARALLEL: Final = 32
N_CHUNK: Final = 512  # tokens of prompts in a step
STEP_S: Final = 0.012  # of reading the weights
PROMPT_S: Final = 1 / 8000  # of a token of a prompt
TEXT_S: Final = 0.0002  # of a token of a text
N_TOGETHER: Final = 4  # steps without prompts that are one event


class Asker(Protocol):
    """A conversation."""

    n_turns: int

    def turn(self) -> Job: ...
    def pause(self) -> float: ...


@dataclass(slots=True, eq=False)
class Job:
    """A request, and what became of it. `n_left` are tokens of the answer, `n_todo` those of the
    prompt."""

    pages: tuple[int, ...]
    n_prompt: int
    n_answer: int
    asker: Asker
    n_left: int = 0
    n_cached: int = 0
    n_todo: int = 0
    t_arrived: float = 0.0
    t_first: float = 0.0

    def __post_init__(self) -> None:
        self.n_left = self.n_answer


class Replica:
    """A model of an engine."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.tree: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self.is_running = False
        self._waiting: deque[Job] = deque()
        self._prompts: deque[Job] = deque()
        self._texts: list[Job] = []

    @property
    def n_jobs(self) -> int:
        return len(self._waiting) + len(self._prompts) + len(self._texts)

    @property
    def work(self) -> int:
        """As in the news of a replica."""
        waiting = sum(job.n_prompt for job in self._waiting)
        return waiting + sum(job.n_todo for job in self._prompts) + TEXT_WORK * self.n_jobs

    def add(self, job: Job) -> None:
        self._waiting.append(job)

    def step(self, now: float) -> tuple[float, list[Job]]:
        """Run a step. Return the time of its end, and the jobs that end then."""
        self._admit()
        n_left, done = N_CHUNK, list[Job]()
        while self._prompts and n_left > 0:
            job = self._prompts[0]
            n = min(job.n_todo, n_left)
            job.n_todo -= n
            n_left -= n
            if job.n_todo == 0:
                done.append(self._prompts.popleft())
        n_steps = N_TOGETHER if n_left == N_CHUNK else 1
        n_steps = min([n_steps, *(job.n_left for job in self._texts)])
        end = now + n_steps * (STEP_S + TEXT_S * len(self._texts)) + (N_CHUNK - n_left) * PROMPT_S
        for job in self._texts:
            job.n_left -= n_steps
        ended = [job for job in self._texts if job.n_left <= 0]
        if ended:
            self._texts = [job for job in self._texts if job.n_left > 0]
        for job in done:
            job.t_first = end
            self._remember(job.pages)
        self._texts += done
        return end, ended

    def _admit(self) -> None:
        while self._waiting and len(self._prompts) + len(self._texts) < N_PARALLEL:
            job = self._waiting.popleft()
            n_warm = 0
            for page in job.pages:
                if page not in self.tree:
                    break
                n_warm += 1
            job.n_cached = min(n_warm * PAGE, job.n_prompt - 1)
            job.n_todo = job.n_prompt - job.n_cached
            self._prompts.append(job)

    def _remember(self, pages: Sequence[int]) -> None:
        for page in reversed(pages):
            self.tree[page] = None
            self.tree.move_to_end(page)
        while len(self.tree) > N_PAGES:
            self.tree.popitem(last=False)


Fleet = list[Replica]


def run(
    fleet: Fleet,
    first: Iterable[tuple[float, Job]],
    choose: Callable[[Job, Sequence[Replica], float], Replica],
    seconds: float,
) -> list[Job]:
    """Simulate so many seconds. Return the requests that have ended."""
    number = count()
    events: list[tuple[float, int, Job | Replica]] = [(t, next(number), job) for t, job in first]
    heapq.heapify(events)
    finished: list[Job] = []
    while events and events[0][0] < seconds:
        now, _, what = heapq.heappop(events)
        if isinstance(what, Job):
            what.t_arrived = now
            replica = choose(what, fleet, now)
            replica.add(what)
            if not replica.is_running:
                replica.is_running = True
                heapq.heappush(events, (now, next(number), replica))
            continue
        end, ended = what.step(now)
        finished += ended
        for job in ended:
            if job.asker.n_turns > 0:
                heapq.heappush(events, (end + job.asker.pause(), next(number), job.asker.turn()))
        what.is_running = what.n_jobs > 0
        if what.is_running:
            heapq.heappush(events, (end, next(number), what))
    return finished
