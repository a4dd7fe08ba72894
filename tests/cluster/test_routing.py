"""The choice of a replica, as tables of what the router knows."""

from __future__ import annotations

import pytest

from lamella.cluster.routing import (
    FLIGHT_S,
    N_PREDICTED,
    PREDICTED_S,
    TEXT_WORK,
    Knowledge,
    News,
    Request,
)

PAGE = 32
LONG = Request(tuple(range(10)), 10 * PAGE + 5)


def known(**replicas: News) -> Knowledge[str]:
    knowledge: Knowledge[str] = Knowledge(PAGE)
    knowledge.retain(replicas)
    for id, news in replicas.items():
        knowledge.hear(id, news, 0.0)
    return knowledge


def first(knowledge: Knowledge[str], request: Request) -> str:
    return knowledge.choices(request)[0].id


@pytest.mark.parametrize(
    ("request_", "replicas", "wanted"),
    [
        # nothing is warm: the least loaded one
        (LONG, {"a": News(1, (), 200), "b": News(1, (), 100)}, "b"),
        # the longest warm prefix
        (LONG, {"a": News(1, range(3), 0), "b": News(1, range(4), 0)}, "b"),
        # a warm prefix is worth its tokens, and not more
        (LONG, {"a": News(1, range(4), 4 * PAGE - 1), "b": News(1, (), 0)}, "a"),
        (LONG, {"a": News(1, range(4), 4 * PAGE + 1), "b": News(1, (), 0)}, "b"),
        # of equal ones the warm one
        (LONG, {"b": News(1, (), 0), "a": News(1, range(4), 4 * PAGE)}, "a"),
        # pages after one that is missing are not warm
        (LONG, {"a": News(1, range(1, 10), 0), "b": News(1, (0,), 0)}, "b"),
        # other pages are not those of the request
        (LONG, {"a": News(1, range(100, 200), 10), "b": News(1, (), 0)}, "b"),
        # a request without a prompt
        (Request(), {"a": News(1, (), 10), "b": News(1, (), 5)}, "b"),
    ],
)
def test_the_best_replica(request_: Request, replicas: dict[str, News], wanted: str) -> None:
    assert first(known(**replicas), request_) == wanted


def test_work_and_warm_tokens() -> None:
    best = known(a=News(1, range(4), 50)).choices(LONG)[0]
    assert best == ("a", 50 + 6 * PAGE + 5 + TEXT_WORK, 4 * PAGE)


def test_a_short_prompt_may_be_warm_as_a_whole() -> None:
    best = known(a=News(1, range(10), 0)).choices(Request(tuple(range(10)), 10 * PAGE))[0]
    assert best.work == TEXT_WORK


def test_decisions_are_news() -> None:
    """A burst of equal prompts: another replica is sooner than the one that evaluates the first.
    Then both are warm."""
    knowledge = known(a=News(1, (), 0), b=News(1, (), 0))
    chosen = []
    for _ in range(6):
        chosen.append(knowledge.choices(LONG)[0])
        knowledge.decided(LONG, chosen[-1], 0.0)
    assert [choice.id for choice in chosen] == ["a", "b"] * 3
    assert [choice.n_warm for choice in chosen] == [0, 0, *[10 * PAGE] * 4]


def test_different_prompts_alternate() -> None:
    knowledge = known(a=News(1, (), 0), b=News(1, (), 0))
    chosen = []
    for i in range(6):
        request = Request(tuple(range(i * 100, i * 100 + 10)), 10 * PAGE)
        choice = knowledge.choices(request)[0]
        knowledge.decided(request, choice, 0.0)
        chosen.append(choice.id)
    assert chosen == ["a", "b"] * 3


@pytest.mark.parametrize(("t_news", "n_decisions"), [(FLIGHT_S / 2, 1), (2 * FLIGHT_S, 0)])
def test_news_have_decisions_after_a_while(t_news: float, n_decisions: int) -> None:
    knowledge = known(a=News(1, (), 0))
    knowledge.decided(LONG, knowledge.choices(LONG)[0], 0.0)
    knowledge.hear("a", News(2, (), 7), t_news)
    own = LONG.n_tokens + TEXT_WORK
    assert knowledge.choices(Request())[0].work == 7 + n_decisions * own + TEXT_WORK


def test_the_end_of_a_request_ends_its_work() -> None:
    """One user after the other goes to the warm replica, also before the next news."""
    knowledge = known(a=News(1, (), 0), b=News(1, (), 0))
    for i in range(3):
        choice = knowledge.choices(LONG)[0]
        assert choice.id == "a"
        knowledge.decided(LONG, choice, 0.0, i)
        knowledge.ended("a", i)
    knowledge.ended("a", "unknown")
    knowledge.ended("unknown", 1)


def test_known_news_change_nothing() -> None:
    knowledge = known(a=News(1, (), 10))
    knowledge.hear("a", News(1, range(10), 99), 5.0)
    assert knowledge.choices(LONG)[0].work == 10 + LONG.n_tokens + TEXT_WORK


def test_predictions_end() -> None:
    knowledge = known(a=News(1, (), 0))
    knowledge.decided(LONG, knowledge.choices(LONG)[0], 0.0)
    knowledge.hear("a", News(2, (), 0), PREDICTED_S - 1)
    assert knowledge.choices(LONG)[0].n_warm == 10 * PAGE
    knowledge.hear("a", News(3, (), 0), PREDICTED_S + 1)
    assert knowledge.choices(LONG)[0].n_warm == 0


def test_predictions_are_bounded_and_lose_the_last_pages_first() -> None:
    knowledge = known(a=News(1, (), 0))
    for begin in (0, N_PREDICTED // 2):
        pages = tuple(range(begin * 10, begin * 10 + N_PREDICTED * 3 // 4))
        request = Request(pages, len(pages) * PAGE)
        knowledge.decided(request, knowledge.choices(request)[0], 0.0)
    older = Request(tuple(range(N_PREDICTED)), N_PREDICTED * PAGE)
    assert knowledge.choices(older)[0].n_warm == N_PREDICTED // 4 * PAGE


def test_replicas_come_and_go() -> None:
    knowledge = known(a=News(1, range(10), 0), b=News(1, (), 0))
    knowledge.retain(["b", "c"])
    assert {choice.id for choice in knowledge.choices(LONG)} == {"b", "c"}
    knowledge.retain(["a"])
    assert knowledge.choices(LONG)[0].n_warm == 0  # a new replica of that name


def test_only_some_are_allowed() -> None:
    knowledge = known(a=News(1, range(10), 0), b=News(1, (), 0), c=News(1, (), 1))
    assert [choice.id for choice in knowledge.choices(LONG, {"b", "c"})] == ["b", "c"]
    assert knowledge.choices(LONG, set()) == []
    assert Knowledge[str](PAGE).choices(LONG) == []
