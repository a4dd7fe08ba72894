"""The engine's decisions, as tables of situations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lamella.model.kv_prefix import PLAIN, PrefixIdentity
from lamella.runtime.engine import policy
from lamella.runtime.engine.job import StopType
from lamella.runtime.engine.shares import Owner, Turns
from lamella.runtime.params import GenerationParams


@dataclass(eq=False)
class State:
    """A job as the policy sees it."""

    tokens: Sequence[int] = ()
    n_done: int = 0
    decoding: bool = False
    settled: bool = False
    paused: bool = False
    params: GenerationParams = GenerationParams()
    owner: Owner = Owner()
    identity: PrefixIdentity = PLAIN
    marks: Sequence[int] | None = None


def prompt(n: int, n_done: int = 0, *, settled: bool = False, **params: Any) -> State:
    """A job whose prompt has `n` tokens: 0, 1, 2, ..."""
    return State(range(n), n_done, settled=settled, params=GenerationParams(**params))


DECODING = State((1, 2), decoding=True)
PAGE = 4


@pytest.mark.parametrize(
    ("job", "n_shared", "fits", "running", "waits"),
    [
        # pages
        (prompt(9), 0, True, [], False),
        (prompt(9), 0, False, [], False),  # without running jobs it always starts
        (prompt(9), 0, True, [DECODING], False),
        (prompt(9), 0, False, [DECODING], True),
        # a running job evaluates the next page of its prefix
        (prompt(9), 0, True, [prompt(9)], True),
        (prompt(9), 4, True, [prompt(9, 4)], True),
        (prompt(9), 6, True, [prompt(9, 6)], True),  # the page is shared in part
        (
            prompt(9),
            0,
            True,
            [prompt(9, 4)],
            False,
        ),  # evaluated, but evicted
        (prompt(9), 8, True, [prompt(9)], False),  # the next page has only the last token
        (prompt(4), 0, True, [prompt(4)], False),
        (prompt(5), 0, True, [prompt(4)], True),
        (prompt(9), 0, True, [prompt(3)], False),  # not a full page
        (prompt(9), 4, True, [prompt(7)], False),
        (prompt(9), 0, True, [State((0, 1, 2, 9, 4))], False),  # another prefix
        (prompt(9), 0, True, [DECODING, State(range(9), decoding=True)], False),
        (prompt(9), 0, True, [DECODING, prompt(9)], True),
        # jobs that do not share
        (prompt(9), 0, True, [State(range(9), identity=PrefixIdentity("a"))], False),
        (prompt(9), 0, True, [State(range(9), identity=PrefixIdentity(lora=(1.0,)))], False),
        (prompt(9, cache_prompt=False), 0, True, [prompt(9)], False),
        (prompt(9), 0, True, [prompt(9, cache_prompt=False)], False),
        (prompt(9, cache_prompt=False), 0, False, [prompt(9)], True),
        # layers keep states: a running job evaluates a marked length of its prefix
        (prompt(9), 0, True, [State(range(9), marks=[6])], True),
        (prompt(9), 0, True, [State(range(7), marks=[6])], False),  # not in a full page
        (prompt(9), 0, True, [State(range(9), 8, marks=[6])], False),
        (prompt(9), 6, True, [State(range(9), marks=[6])], False),
        (prompt(6), 0, True, [State(range(9), marks=[6])], False),  # its last token
        (prompt(9), 0, True, [State([*range(5), 9, 9, 9], marks=[6])], False),
        (prompt(9), 0, True, [State(range(9), marks=[2, 6])], True),
        (prompt(9), 0, True, [State(range(9))], True),
    ],
)
def test_which_jobs_wait(
    job: State, n_shared: int, fits: bool, running: list[State], waits: bool
) -> None:
    assert policy.must_wait(job, n_shared, fits, running, PAGE) is waits


def test_many_marks_cost_one_comparison() -> None:
    """Prompts of 100,000 tokens and 200 marks: all comparisons took a quarter of a second."""

    class Tokens(list[int]):
        n_cut = 0

        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            Tokens.n_cut += len(found) if isinstance(at, slice) else 1
            return found

    tokens = Tokens(range(1000))
    other = State(Tokens([7, *range(1, 1000)]), marks=range(10, 1000, 10))
    assert not policy.prefix_is_coming(State(tokens), 0, [other, other], PAGE)
    assert Tokens.n_cut == 4 * 10


@pytest.mark.parametrize(
    ("n_shared", "fits", "n"), [(0, True, 0), (6, True, 6), (6, False, 4), (8, False, 8)]
)
def test_shared_length(n_shared: int, fits: bool, n: int) -> None:
    assert policy.shared_length(n_shared, fits, PAGE) == n


def test_the_youngest_is_preempted() -> None:
    old, young = prompt(3), State((1,), decoding=True)
    assert policy.victim([old]) is old
    assert policy.victim([old, young]) is young


def of(owners: str) -> list[State]:
    """Running jobs: "a1" is of client a, its request 1; a "-" behind it: the job is paused."""
    return [
        State(range(9), paused=name.endswith("-"), owner=Owner(name[0], int(name[1])))
        for name in owners.split()
    ]


@pytest.mark.parametrize(
    ("running", "index"),
    [
        ("a1 b1", 1),  # the oldest stays
        ("a1 a1 b1", 1),
        ("a1 b1 b2 a2", 3),  # the youngest of all clients with two
        ("a1 a2 a2 a1 a3 b1", 3),  # the youngest of all requests with two
        ("a1 b1- b2 b2", 1),  # a paused one first
    ],
)
def test_a_job_of_the_client_with_the_most_is_preempted(running: str, index: int) -> None:
    jobs = of(running)
    assert policy.victim(jobs) is jobs[index]


@pytest.mark.parametrize(
    ("job", "running", "index"),
    [
        ("a1", "", None),
        ("a1", "b1", None),  # the other would have none
        ("a1", "b1 b1", 1),
        ("a1", "b1 c1", None),
        ("a1", "b1 a1 b1", None),  # one more is not worth it
        ("a1", "b1 b1 a1 b1", 3),
        ("a1", "b1 b2 b1 c1", 2),
        ("a1", "a2 a2", 1),  # requests of a client
        ("a1", "a2 a3", None),
        ("a1", "a2 a2 b1 b2", 1),
        ("a1", "a2 b1-", 1),  # a paused one always
        ("a1", "a1 a1 a1", None),
    ],
)
def test_which_job_leaves_for_a_waiting_one(job: str, running: str, index: int | None) -> None:
    jobs = of(running)
    leaves = policy.leaves_for(of(job)[0], jobs)
    assert leaves is (None if index is None else jobs[index])


@pytest.mark.parametrize("n_clients", [1, 2, 3])
@pytest.mark.parametrize("n_places", [1, 2, 4, 5])
def test_leaving_ends(n_clients: int, n_places: int) -> None:
    waiting = [of(f"{client}{n}")[0] for client in "abc"[:n_clients] for n in range(3)] * 3
    running: list[State] = []
    for _ in range(100):
        turns: Turns[State] = Turns()
        for job in (*running, *waiting):
            turns.add(job)
        for job in running:
            turns.start(job)
        first = turns.first()
        assert first is not None
        if len(running) >= n_places:
            leaves = policy.leaves_for(first, running)
            if leaves is None:
                break
            running.remove(leaves)
            waiting.insert(0, leaves)
        waiting.remove(first)
        running.append(first)
    counts = Counter(job.owner.client for job in running)
    assert len(running) == n_places
    assert max(counts.values()) - min(counts.get(c, 0) for c in "abc"[:n_clients]) <= 1


@pytest.mark.parametrize(
    ("owners", "budget", "chunks"),
    [
        ("a1 a1 b1", 8, [4, 0, 4]),
        ("a1 a1 b1", 20, [9, 2, 9]),
        ("a1 a2 b1", 8, [2, 2, 4]),
        ("b1 a1 b2 b2", 12, [3, 6, 3, 0]),
        ("a1 b1 c1", 2, [1, 1, 0]),
        ("a1 b1 c1", 100, [9, 9, 9]),
    ],
)
def test_clients_share_the_prompt_tokens_of_a_step(
    owners: str, budget: int, chunks: list[int]
) -> None:
    jobs = of(owners)
    found = policy.prompt_chunks(jobs, budget)
    expected = [(job, n) for job, n in zip(jobs, chunks, strict=True) if n]
    assert [(id(job), n) for job, n in found] == [(id(job), n) for job, n in expected]


@pytest.mark.parametrize(
    ("running", "budget", "chunks"),
    [
        ([], 8, []),
        ([DECODING], 7, []),
        ([prompt(5)], 8, [5]),
        ([prompt(5, 3)], 8, [2]),
        ([prompt(20)], 8, [8]),
        ([prompt(20, 16)], 8, [4]),
        ([prompt(3), prompt(20)], 8, [3, 5]),  # the oldest first
        ([prompt(20), prompt(3)], 8, [8]),
        ([DECODING, prompt(20), DECODING], 6, [6]),
        ([prompt(9), prompt(9)], 1, [1]),
        ([DECODING, prompt(9)], 0, []),  # the decoding jobs are measured alone
        ([prompt(9, settled=True), prompt(3)], 8, [3]),
    ],
)
def test_prompt_chunks(running: list[State], budget: int, chunks: list[int]) -> None:
    found = policy.prompt_chunks(running, budget)
    assert [n for _, n in found] == chunks
    unfinished = [job for job in running if not job.decoding and not job.settled]
    assert [job for job, _ in found] == unfinished[: len(chunks)]


@pytest.mark.parametrize(
    ("n_predict", "end", "wants"), [(-1, 8, False), (-1, 9, True), (1, 9, True), (0, 9, False)]
)
def test_the_end_of_a_prompt_has_an_output(n_predict: int, end: int, wants: bool) -> None:
    assert policy.wants_output(prompt(9, n_predict=n_predict), end) is wants


def test_every_decoding_job_gets_a_token() -> None:
    jobs = [DECODING, prompt(3), State((5,), decoding=True)]
    assert policy.decoding(jobs) == [jobs[0], jobs[2]]


@pytest.mark.parametrize(
    ("n_predicted", "n_predict", "n_tokens", "n_ctx", "late", "end"),
    [
        (1, -1, 5, 9, False, (None, False)),
        (3, 3, 5, 9, False, (StopType.LIMIT, False)),
        (2, 3, 5, 9, False, (None, False)),
        (2, 3, 5, 9, True, (StopType.LIMIT, False)),
        (2, -1, 8, 9, False, (None, False)),
        (2, -1, 9, 9, False, (StopType.LIMIT, True)),
        (3, 3, 9, 9, False, (StopType.LIMIT, False)),  # the limit came first
    ],
)
def test_limits(
    n_predicted: int,
    n_predict: int,
    n_tokens: int,
    n_ctx: int,
    late: bool,
    end: tuple[StopType | None, bool],
) -> None:
    assert policy.limit_of(n_predicted, n_predict, n_tokens, n_ctx, late) == end


@pytest.mark.parametrize(
    ("t_max_ms", "elapsed_ms", "has_new_line", "late"),
    [
        (0, 1e9, True, False),  # no limit
        (10, 9, True, False),
        (10, 10, True, True),
        (10, 11, False, False),  # no new line yet
    ],
)
def test_time_limit(t_max_ms: float, elapsed_ms: float, has_new_line: bool, late: bool) -> None:
    assert policy.is_late(t_max_ms, elapsed_ms, has_new_line) is late
