"""Guesses from the text itself: what followed the last time that its last tokens occurred.

Summaries, edits and code repeat much of their prompt. Tested by tests/runtime/test_drafts.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .source import NO_DRAFT, Draft

N_INDEXED: Final = 1 << 14  # tokens at the end of a prompt: more would hold up the first step
LONG: Final = (4, 6, 10)  # matches of more tokens come true more often


class NgramSource:
    """Looks the last `n_gram` tokens of a text up in it."""

    def __init__(self, n_gram: int) -> None:
        self._n = n_gram
        self._ends: dict[tuple[int, ...], int] = {}  # of each n-gram: the index after its last
        self._n_seen = 0
        self._last: tuple[int, ...] = ()  # the last n-gram of the seen tokens

    def draft(self, tokens: Sequence[int], n_max: int) -> Draft:
        last, n_tokens = self._last, len(tokens)
        if n_tokens == self._n_seen + 1 and len(last) == self._n:  # this is asked for each token
            self._ends[last] = n_tokens - 1
            self._last = (*last[1:], tokens[-1])
        else:
            if n_tokens < self._n_seen:  # the context was shifted
                self._ends.clear()
                self._n_seen = 0
            self._index(tokens)
            self._last = tuple(tokens[-self._n :])
        self._n_seen = n_tokens
        at = self._ends.get(self._last)
        if at is None:
            return NO_DRAFT
        return Draft(copied(tokens, at, n_max), self._kind(tokens, at))

    def _index(self, tokens: Sequence[int]) -> None:
        """Add the n-grams that a token follows."""
        n, end = self._n, len(tokens) - 1
        first = max(self._n_seen, end - N_INDEXED, n)
        if first <= end:
            columns = (tokens[first - n + i : end - n + i + 1] for i in range(n))
            self._ends.update(zip(zip(*columns, strict=True), range(first, end + 1), strict=True))

    def _kind(self, tokens: Sequence[int], at: int) -> tuple[str, int]:
        """The class of a match by its length."""
        n, end, most = self._n, len(tokens), max(LONG)
        while n < most and n < at and tokens[at - n - 1] == tokens[end - n - 1]:
            n += 1
        return "ngram", sum(n >= long for long in LONG)


def copied(tokens: Sequence[int], at: int, n: int) -> list[int]:
    """`n` tokens from index `at` on. What the text does not have yet repeats."""
    found = list(tokens[at : at + n])
    period = len(tokens) - at
    while len(found) < n:
        found.append(found[len(found) - period])
    return found
