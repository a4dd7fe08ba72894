"""How many guesses a step checks."""

from __future__ import annotations

import random
from itertools import product

from lamella.runtime.engine.drafts.widths import GAIN, Wish, best_depth, best_widths

MEMORY_BOUND = {1: 20.0, 2: 21.0, 4: 23.0, 8: 28.0, 16: 45.0, 32: 85.0, 64: 165.0}
COMPUTE_BOUND = {1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0, 16: 160.0, 32: 320.0, 64: 640.0}


def size(n: int) -> int:
    return 1 << (n - 1).bit_length()


def widths(wishes: list[Wish], n_texts: int, ms: dict[int, float], n_max: int = 64) -> list[int]:
    return best_widths(wishes, n_texts, n_max, lambda n: ms.get(size(n)))


def test_sure_guesses_fill_a_size() -> None:
    assert widths([Wish(0.9, 7)], 1, MEMORY_BOUND) == [7]
    assert widths([Wish(0.6, 7)], 1, MEMORY_BOUND) in ([3], [7])
    assert widths([Wish(0.02, 7)], 1, MEMORY_BOUND) == [0]
    assert widths([Wish(0.9, 7)], 1, COMPUTE_BOUND) == [0]


def test_many_texts_leave_no_room() -> None:
    wishes = [Wish(0.6, 7)] * 16
    assert widths(wishes, 16, MEMORY_BOUND) == [0] * 16


def test_padding_is_free() -> None:
    """Five texts take as long as eight tokens."""
    assert sum(widths([Wish(0.3, 7)] * 5, 5, COMPUTE_BOUND)) == 3


def test_likely_guesses_come_first() -> None:
    assert widths([Wish(0.2, 7), Wish(0.95, 7), Wish(0.5, 1)], 3, MEMORY_BOUND)[1] >= 3


def test_an_unknown_time_is_measured_first() -> None:
    assert widths([Wish(0.9, 7)], 1, {}) == [0]
    assert widths([Wish(0.9, 7)], 1, {1: 20.0}) == [1]
    assert widths([Wish(0.9, 7)], 1, {1: 20.0, 2: 21.0}) == [3]
    assert widths([Wish(0.9, 7)], 1, {1: 20.0, 2: 21.0, 4: 23.0}) == [7]
    assert widths([Wish(0.1, 7)], 1, {1: 20.0}) == [0]


def test_a_step_keeps_its_limit() -> None:
    assert sum(widths([Wish(0.99, 63)], 1, MEMORY_BOUND, n_max=16)) <= 15
    assert sum(widths([Wish(0.99, 63)] * 5, 5, MEMORY_BOUND, n_max=7)) <= 2


def test_the_choice_is_never_expected_to_lose() -> None:
    rng = random.Random(1)
    for n_texts, _ in product((1, 2, 3, 5, 8, 16), range(50)):
        ms = dict(zip(MEMORY_BOUND, sorted(rng.uniform(1, 100) for _ in MEMORY_BOUND), strict=True))
        wishes = [Wish(rng.random(), rng.choice([1, 3, 7])) for _ in range(rng.randint(1, n_texts))]
        found = widths(wishes, n_texts, ms)
        assert all(0 <= n <= wish.n for n, wish in zip(found, wishes, strict=True))
        gained = sum(w.rate**i for n, w in zip(found, wishes, strict=True) for i in range(1, n + 1))
        if sum(found):
            ratio = (
                (n_texts + gained) / n_texts * ms[size(n_texts)] / ms[size(n_texts + sum(found))]
            )
            assert ratio > GAIN - 1e-9


def depth(rates: list[float], ms_draft: float | None, ms: dict[int, float], n_max: int = 7) -> int:
    return best_depth(rates, len(rates), n_max, 64, lambda n: ms.get(size(n)), ms_draft)


def test_a_draft_model_guesses_deeper_if_it_is_fast_and_right() -> None:
    assert depth([0.9], 0.5, MEMORY_BOUND) == 7
    assert depth([0.9], 30.0, MEMORY_BOUND) == 0
    assert depth([0.1], 2.0, MEMORY_BOUND) == 0
    assert 1 <= depth([0.7], 4.0, MEMORY_BOUND) <= 3
    assert depth([0.9] * 16, 0.5, MEMORY_BOUND) <= 1


def test_a_draft_model_is_tried_and_measured() -> None:
    assert depth([0.6], None, MEMORY_BOUND) == 1
    assert depth([0.6], 1.0, {}) == 0
    assert depth([], 1.0, MEMORY_BOUND) == 0
