"""Whose turn it is, without an engine."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from lamella.runtime.engine.shares import N_IDLE_MAX, Owner, Turns, split


@dataclass(eq=False)
class Waiting:
    owner: Owner
    number: int = 0
    paused: bool = False


def turns_of(names: str) -> Turns[Waiting]:
    """Waiting jobs: "a1" is of client a, its request 1."""
    turns: Turns[Waiting] = Turns()
    for number, name in enumerate(names.split()):
        turns.add(Waiting(Owner(name[0], int(name[1])), number))
    return turns


def served(turns: Turns[Waiting], n_tokens: int = 1) -> list[int]:
    """The order of all jobs on an engine that runs one job at a time."""
    found = []
    while (job := turns.first()) is not None:
        turns.start(job)
        turns.charge(job.owner, n_tokens)
        turns.end(job)
        found.append(job.number)
    assert len(turns) == 0
    return found


@pytest.mark.parametrize(
    ("names", "order"),
    [
        ("a1 a1 a1", [0, 1, 2]),
        ("a1 a1 a1 b1", [0, 3, 1, 2]),  # clients take turns
        ("a1 a1 b1 b1", [0, 2, 1, 3]),
        ("a1 a1 a1 a2", [0, 3, 1, 2]),  # and so do requests of a client
        ("a1 a1 a2 b1 b1", [0, 3, 2, 4, 1]),
    ],
)
def test_turns(names: str, order: list[int]) -> None:
    assert served(turns_of(names)) == order


def test_a_client_with_fewer_running_jobs_goes_first() -> None:
    turns = turns_of("a1 a1 a1 b1")
    for _ in range(2):
        first = turns.first()
        assert first is not None
        turns.start(first)
        turns.charge(first.owner, 1 if first.owner.client == "a" else 100)
    rest = turns.first()
    assert rest is not None and rest.number == 1 and turns.n_waiting("a") == 2


def test_clients_share_by_tokens() -> None:
    rng, turns = random.Random(1), Turns[Waiting]()
    sizes, used = {"a": 90, "b": 10, "c": 1}, Counter[str]()
    for client in sizes:
        for n in range(5000):
            turns.add(Waiting(Owner(client, n % 3)))
    for _ in range(2000):
        job = turns.first()
        assert job is not None
        n = sizes[job.owner.client] + rng.randrange(2)
        turns.start(job)
        turns.charge(job.owner, n)
        used[job.owner.client] += n
        turns.end(job)
    assert max(used.values()) - min(used.values()) <= 91


def test_idle_time_earns_nothing() -> None:
    turns = turns_of("a1")
    turns.charge(Owner("a", 1), 1000)
    for n in range(3):
        turns.add(Waiting(Owner("b", n), 10 + n))
        turns.add(Waiting(Owner("a", 1), 20 + n))
    assert served(turns, n_tokens=100) == [0, 10, 20, 11, 21, 12, 22]


def test_what_a_client_has_used_is_remembered_while_others_wait() -> None:
    turns = turns_of("a1 b1 b1 b1 b1")
    first = turns.first()
    assert first is not None
    turns.start(first)
    turns.charge(first.owner, 2)
    turns.end(first)
    turns.add(Waiting(Owner("a", 2), 9))
    assert served(turns) == [1, 2, 3, 9, 4]


def test_a_preempted_job_is_the_first_of_its_request() -> None:
    turns = turns_of("a1 a1 a1")
    jobs = list(turns)
    for job in jobs[:2]:
        turns.start(job)
    for job in reversed(jobs[:2]):
        turns.put_back(job)
    assert served(turns) == [0, 1, 2]


def test_paused_and_skipped_jobs_take_no_turns() -> None:
    turns = turns_of("a1 a1 a2 b1")
    jobs = list(turns)
    jobs[0].paused = True
    assert turns.first() is jobs[1]
    assert turns.first({Owner("a", 1)}) is jobs[2]
    assert turns.first({Owner("a", 1), Owner("a", 2)}) is jobs[3]
    for job in jobs:
        job.paused = True
    assert turns.first() is None


def test_nothing_is_kept_of_clients_and_requests_that_left() -> None:
    turns = turns_of("z0")
    for n in range(2000):
        job = Waiting(Owner(f"client {n}", n))
        turns.add(job)
        turns.charge(job.owner, 5)
        if n % 2:
            turns.remove(job)
        else:
            turns.start(job)
            turns.end(job)
    clients = turns._all.parts
    assert len(clients) <= N_IDLE_MAX + 2
    assert sum(len(client.parts) for client in clients.values()) == 1
    turns.remove(next(iter(turns)))
    turns.add(Waiting(Owner("new", 1)))
    assert list(clients) == ["new"]


@pytest.mark.parametrize(
    ("budget", "wanted", "found"),
    [
        (0, [3, 3], [0, 0]),
        (8, [], []),
        (8, [9], [8]),
        (8, [9, 9], [4, 4]),
        (9, [9, 9], [5, 4]),
        (8, [1, 9], [1, 7]),
        (8, [9, 1, 0], [7, 1, 0]),
        (2, [5, 5, 5], [1, 1, 0]),
        (100, [5, 6, 7], [5, 6, 7]),
    ],
)
def test_split(budget: int, wanted: list[int], found: list[int]) -> None:
    assert split(budget, wanted) == found


def test_split_gives_all_and_never_too_much() -> None:
    rng = random.Random(2)
    for _ in range(500):
        wanted = [rng.randrange(20) for _ in range(rng.randrange(6))]
        budget = rng.randrange(40)
        found = split(budget, wanted)
        assert sum(found) == min(budget, sum(wanted))
        assert all(n <= most for n, most in zip(found, wanted, strict=True))
        unmet = [n for n, most in zip(found, wanted, strict=True) if n < most]
        assert not unmet or max(found) <= min(unmet) + 1
