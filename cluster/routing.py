"""Which replica gets a request: the one that needs the least work until its first token.

Work is counted in tokens of prompts. A replica's is what it has to do already, and the tokens of
the request that its prefix tree does not have. So a request goes where its prefix is warm, unless
another replica would evaluate all of it sooner; among equals it goes to the least loaded one. Then
the prefix is warm there too: many requests with one prefix spread by themselves.

A `Knowledge` is what a router knows: the news that replicas send about once a second, and its own
decisions since. Pure: it has no clock, and gives the same answers to the same calls. Knows no Ray.
Tested by tests/cluster/test_routing.py; `scripts/bench routing` simulates fleets.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

Id = TypeVar("Id", bound=Hashable)

N_CHOICES: Final = 4  # the first that takes the request gets it
N_PREDICTED: Final = 4096  # pages of the router's decisions that it remembers of a replica
PREDICTED_S: Final = 10.0  # so long after a decision its pages count as warm, whatever news say
FLIGHT_S: Final = 0.3  # news may be so old: decisions of this time before them are not in them
TEXT_WORK: Final = 32  # a running text slows prompts as much as so many tokens of them


class Request(NamedTuple):
    """What a router knows of a request: the numbers of its prompt's pages (see `prefixes`), and the
    number of its tokens. Both are empty for a request that evaluates no prompt."""

    pages: Sequence[int] = ()
    n_tokens: int = 0


class News(NamedTuple):
    """What a replica says about itself.

    Attributes:
        number: counts its news.
        pages: the numbers of the pages in its prefix tree.
        work: the tokens of prompts that it has to evaluate, and `TEXT_WORK` for each text.
    """

    number: int
    pages: Iterable[int]
    work: int


class Decision(NamedTuple):
    """A request that the router has sent to a replica: when, its work there, and its name."""

    t: float
    work: int
    key: Hashable


@dataclass(slots=True)
class Known:
    """What a router knows of one replica.

    Attributes:
        number: of its last news.
        warm: the pages in its prefix tree.
        load: its work, with that of `decisions`.
        decisions: those that its news do not have.
        predicted: the end of each page's prediction, the earliest one first.
    """

    number: int = -1
    warm: frozenset[int] = frozenset()
    load: int = 0
    decisions: deque[Decision] = field(default_factory=deque)
    predicted: OrderedDict[int, float] = field(default_factory=OrderedDict)

    def has(self, page: int) -> bool:
        """True if a page is warm."""
        return page in self.warm or page in self.predicted

    def n_warm(self, pages: Sequence[int]) -> int:
        """The number of the first pages that are warm. No page is warm without those before it."""
        if not pages or not self.has(pages[0]):  # most often
            return 0
        return bisect_left(pages, True, key=lambda page: not self.has(page))


class Choice(NamedTuple, Generic[Id]):
    """A replica for a request: its work until the first token, and the tokens that are warm."""

    id: Id
    work: int
    n_warm: int


class Knowledge(Generic[Id]):
    """What a router knows of the replicas of a model."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._known: dict[Id, Known] = {}

    def retain(self, ids: Iterable[Id]) -> None:
        """Forget the replicas that are not among `ids`, and know of all that are."""
        self._known = {id: self._known.get(id) or Known() for id in ids}

    def hear(self, id: Id, news: News, now: float) -> None:
        """Note the news of a replica. Does nothing if they are known."""
        known = self._known.setdefault(id, Known())
        if news.number == known.number:
            return
        known.number, known.warm = news.number, frozenset(news.pages)
        while known.decisions and known.decisions[0].t < now - FLIGHT_S:
            known.decisions.popleft()
        known.load = news.work + sum(decision.work for decision in known.decisions)
        while known.predicted and next(iter(known.predicted.values())) < now:
            known.predicted.popitem(last=False)

    def choices(self, request: Request, ids: Collection[Id] | None = None) -> list[Choice[Id]]:
        """The best replicas for a request, the best first. `ids`: those to choose from; None: all
        that are known."""
        known = self._known.items()
        if ids is not None and len(ids) < len(known):
            known = {id: one for id, one in known if id in ids}.items()
        found: list[Choice[Id]] = []
        n_cold = 0
        for id, one in sorted(known, key=_load):
            is_full = len(found) == N_CHOICES
            if is_full and one.load + TEXT_WORK > found[-1].work:
                break  # no later one is better
            n_warm = one.n_warm(request.pages)
            n_cold += not n_warm
            if n_warm or n_cold <= N_CHOICES:
                insort(found, self._choice(request, id, one, n_warm), key=_order)
                del found[N_CHOICES:]
        return found

    def decided(
        self, request: Request, choice: Choice[Id], now: float, key: Hashable = None
    ) -> None:
        """Note that a request is sent to a replica. `key` is its name, for `ended`."""
        known = self._known.setdefault(choice.id, Known())
        own = Decision(now, _own_work(request, choice.n_warm), key)
        known.decisions.append(own)
        known.load += own.work
        for page in reversed(request.pages):  # the first page is forgotten last
            known.predicted[page] = now + PREDICTED_S
            known.predicted.move_to_end(page)
        while len(known.predicted) > N_PREDICTED:
            known.predicted.popitem(last=False)

    def ended(self, id: Id, key: Hashable) -> None:
        """Note that a request to a replica has ended."""
        known = self._known.get(id, Known())
        for decision in known.decisions:
            if decision.key == key:
                known.decisions.remove(decision)
                known.load -= decision.work
                return

    def _choice(self, request: Request, id: Id, known: Known, n_pages: int) -> Choice[Id]:
        n_warm = n_pages * self._page_size
        return Choice(id, known.load + _own_work(request, n_warm), n_warm)


def _load(replica: tuple[object, Known]) -> int:
    return replica[1].load


def _order(choice: Choice[Id]) -> tuple[int, int]:
    return choice.work, -choice.n_warm


def _own_work(request: Request, n_warm: int) -> int:
    return max(request.n_tokens - n_warm, 0) + TEXT_WORK
