"""The order in which a cache loses its entries."""

from __future__ import annotations

import random

from lamella.model.aging import Aging


def left(aging: Aging[str]) -> str:
    return "".join(iter(aging.pop, None))


def test_entries_of_equal_worth_leave_by_their_last_use() -> None:
    aging = Aging[str]()
    for key in "abcd":
        aging.use(key, 3)
    aging.use("a")
    assert aging.highest() == ["a", "d", "c", "b"]
    assert left(aging) == "bcda" and not len(aging)


def test_the_least_valuable_leave_first_but_age() -> None:
    aging = Aging[str]()
    aging.use("old", 10)
    found = []
    for key in "abcde":
        aging.use(key, 3)  # moves the clock by 3 if it leaves
        found.append(aging.pop())
    assert found == ["a", "b", "c", "old", "d"]


def test_what_may_not_leave_stays() -> None:
    aging = Aging[str]()
    for key in "abc":
        aging.use(key, 1)
    assert aging.pop(lambda key: key == "b") == "b"
    assert aging.pop(lambda key: False) is None
    aging.remove("a")
    aging.remove("z")
    assert left(aging) == "c"


def test_random_uses_are_in_the_order_of_a_search() -> None:
    chance, aging = random.Random(3), Aging[int]()
    clock, ranks = 0.0, dict[int, tuple[float, int]]()
    for i in range(5000):
        key = chance.randrange(30)
        if chance.random() < 0.8:
            worth = chance.choice([1.0, 2.0, 7.0])
            aging.use(key, worth)
            ranks[key] = clock + worth, i
        elif chance.random() < 0.2:
            aging.remove(key)
            ranks.pop(key, None)
        else:
            allowed = [key for key in ranks if key % 3]
            least = min(allowed, key=ranks.__getitem__, default=None)
            assert aging.pop(lambda key: key % 3 != 0) == least
            if least is not None:
                clock = ranks.pop(least)[0]
        assert len(aging) == len(ranks) and len(aging._heap) <= 2 * len(ranks) + 64
