"""Guesses from other texts of the same client: which token followed the same tokens there.

A table tells what others wrote, so each client has one of its own, and only requests that ask for
it use it. Tested by tests/runtime/test_drafts.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final

from .source import NO_DRAFT, Draft

N_ENTRIES: Final = 1 << 16  # of a table
N_TABLES: Final = 16
N_LEARNED: Final = 1 << 12  # tokens at the end of a prompt


class NgramTable:
    """The token that followed each n-gram last. The least recently written entry goes first."""

    def __init__(self, n_gram: int) -> None:
        self.n_gram = n_gram
        self._next = OrderedDict[tuple[int, ...], int]()  # a dict is slow to lose its first entry

    def learn(self, tokens: Sequence[int], begin: int) -> None:
        """Add the tokens from index `begin` on."""
        n = self.n_gram
        for at in range(max(begin, n), len(tokens)):
            key = tuple(tokens[at - n : at])
            self._next[key] = tokens[at]
            self._next.move_to_end(key)
        while len(self._next) > N_ENTRIES:
            self._next.popitem(last=False)

    def follow(self, tokens: Sequence[int], n_max: int) -> list[int]:
        """At most `n_max` tokens, each the one that followed those before it."""
        last, found = tuple(tokens[-self.n_gram :]), list[int]()
        while len(found) < n_max and (token := self._next.get(last)) is not None:
            found.append(token)
            last = (*last[1:], token)
        return found


class NgramTables:
    """The tables of the last clients."""

    def __init__(self) -> None:
        self._tables = OrderedDict[Hashable, NgramTable]()

    def of(self, owner: Hashable, n_gram: int) -> NgramTable:
        key = owner, n_gram
        table = self._tables.setdefault(key, NgramTable(n_gram))
        self._tables.move_to_end(key)
        while len(self._tables) > N_TABLES:
            self._tables.popitem(last=False)
        return table


class TableSource:
    """Adds a text to a table, and looks its end up there."""

    def __init__(self, table: NgramTable) -> None:
        self._table = table
        self._n_seen = 0

    def draft(self, tokens: Sequence[int], n_max: int) -> Draft:
        n_seen = min(self._n_seen, len(tokens))  # fewer after a shift of the context
        self._table.learn(tokens, max(n_seen, len(tokens) - N_LEARNED))
        self._n_seen = len(tokens)
        found = self._table.follow(tokens, n_max)
        return Draft(found, "table") if found else NO_DRAFT
