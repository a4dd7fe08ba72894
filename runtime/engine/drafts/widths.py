"""How many guesses a step checks: as many as make most tokens per second, by what is measured.

A pure function. Graphs are padded to few sizes, so a step fills its size with guesses.
Tested by tests/runtime/test_widths.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

GAIN: Final = 1.02  # fewer tokens more than this are within the noise of times
UNKNOWN: Final = 1.25  # a size that was not measured takes at least so many times as long


class Wish(NamedTuple):
    """What may be guessed of a text: `n` tokens, each right with probability `rate`."""

    rate: float
    n: int


def best_depth(
    rates: Sequence[float],
    n_texts: int,
    n_max: int,
    n_most: int,
    ms_of: Callable[[int], float | None],
    ms_draft: float | None,
) -> int:
    """Return how many tokens a draft model guesses for each of some texts.

    Args:
        rates: of the texts that it guesses for.
        n_texts, n_most, ms_of: see `best_widths`; `n_most` is its `n_max`.
        n_max: most guesses of a text.
        ms_draft: the milliseconds of a guess of each text; None if they are not known.
    """
    alone = ms_of(n_texts)
    if alone is None or not rates or not n_max:
        return 0
    best, most, ms, growth = 0, GAIN * n_texts / alone, alone, UNKNOWN
    for depth in sorted({min(d, n_max) for d in (1, 3, 7, 15, 31, 63)}):
        n_tokens = n_texts + depth * len(rates)
        if n_tokens > n_most:
            break
        known = ms_of(n_tokens)
        ms, growth = _ms(known, ms, growth)
        made = n_texts + sum(rate**i for rate in rates for i in range(1, depth + 1))
        speed = made / (ms + depth * (ms_draft or 0.0))
        if speed > most:
            best, most = depth, speed
        if known is None or ms_draft is None:
            break
    return best


def best_widths(
    wishes: Sequence[Wish], n_texts: int, n_max: int, ms_of: Callable[[int], float | None]
) -> list[int]:
    """Return the number of guesses of each wish.

    Args:
        wishes: of some of the texts.
        n_texts: texts that the step continues, each by a token of its own.
        n_max: most tokens of the step.
        ms_of: the milliseconds of a step of so many tokens; None if they are not known. Steps of
            equal size take equally long.
    """
    found = [0] * len(wishes)
    alone = ms_of(n_texts)
    if alone is None or not wishes:
        return found
    # the guesses of each text become less likely, so those before a likely one are likelier
    chances = sorted(
        (
            (wish.rate**i, number)
            for number, wish in enumerate(wishes)
            for i in range(1, wish.n + 1)
        ),
        reverse=True,
    )
    n_best, most = 0, GAIN * n_texts / alone
    size, made, n = 1 << (n_texts - 1).bit_length(), float(n_texts), 0
    ms, growth = alone, UNKNOWN
    while size <= n_max:
        n_before, n = n, min(size - n_texts, len(chances))
        made += sum(chance for chance, _ in chances[n_before:n])
        known = ms_of(n_texts + n)
        ms, growth = _ms(known, ms, growth)
        if made / ms > most:
            n_best, most = n, made / ms
        if known is None or n == len(chances):
            break
        size *= 2
    for _, number in chances[:n_best]:
        found[number] += 1
    return found


def _ms(known: float | None, before: float, growth: float) -> tuple[float, float]:
    """The milliseconds of a size, after those of the size before it, and how much longer it takes:
    an unknown one as much as the last one did."""
    if known is None:
        return growth * before, growth
    return known, max(UNKNOWN, known / before)
