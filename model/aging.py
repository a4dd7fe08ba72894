"""The order in which a cache loses its entries: the least valuable first.

An entry has a worth, and a rank: its worth plus the clock at its last use. The entry of the lowest
rank leaves, and the clock moves on to that rank. So entries of little worth leave soon, and others
later unless they are used. Entries of equal worth leave in the order of their last use. This is
GreedyDual-Size (Cao and Irani, USENIX Symposium on Internet Technologies and Systems 1997).

Not thread-safe. Tested by tests/model/test_aging.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)

N_STALE: Final = 64  # entries of the heap that may be out of date, besides one for each key


class _Rank(NamedTuple):
    rank: float
    n_uses: int  # of all keys: a later use ranks higher
    worth: float


class Aging(Generic[Key]):
    """Keys by their rank. The time of each call is logarithmic in their number."""

    def __init__(self) -> None:
        self._ranks = dict[Key, _Rank]()
        self._heap = list[tuple[float, int, Key]]()  # also has ranks that keys had before
        self._clock = 0.0
        self._n_uses = 0

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, key: object) -> bool:
        return key in self._ranks

    def use(self, key: Key, worth: float | None = None) -> None:
        """Add a key, or mark it as used. Without a worth, it has the one from before."""
        if worth is None:
            worth = self._ranks[key].worth
        self._n_uses += 1
        rank = self._ranks[key] = _Rank(self._clock + worth, self._n_uses, worth)
        heappush(self._heap, (rank.rank, rank.n_uses, key))
        if len(self._heap) > 2 * len(self._ranks) + N_STALE:
            self._heap = [(rank.rank, rank.n_uses, key) for key, rank in self._ranks.items()]
            heapify(self._heap)

    def remove(self, key: Key) -> None:
        """Remove a key, if it is there."""
        self._ranks.pop(key, None)

    def pop(self, may_leave: Callable[[Key], bool] = lambda key: True) -> Key | None:
        """Remove and return the key of the lowest rank that may leave; None if none may."""
        kept, found = list[tuple[float, int, Key]](), None
        while self._heap and found is None:
            entry = heappop(self._heap)
            rank = self._ranks.get(entry[2])
            if rank is None or rank.n_uses != entry[1]:
                continue
            if may_leave(entry[2]):
                found = entry[2]
                self._clock = entry[0]
                del self._ranks[found]
            else:
                kept.append(entry)
        for entry in kept:
            heappush(self._heap, entry)
        return found

    def highest(self) -> list[Key]:
        """Return all keys, the one of the highest rank first."""
        return sorted(self._ranks, key=self._ranks.__getitem__, reverse=True)
