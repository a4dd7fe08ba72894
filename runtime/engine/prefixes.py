"""The prefixes of jobs: tokens that need no evaluation, as the pool has them or gets them back.

Used by the engine's thread. Knows no steps. Tested by tests/runtime/test_engine_prefix.py and
test_prompt_cache.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from ...model.context import Context
from ...model.kv_checkpoints import prompt_marks
from ...model.kv_prefix import PLAIN, PrefixIdentity, PrefixTree
from ...model.kv_restore import PageCache, Restorable
from ...model.kv_sequence import KVSequence
from ...model.page_files import NOTHING, Fetch
from ...model.page_store import PageStore
from ...model.state_slots import SequenceStates
from . import policy
from .ticket import Ticket

INT32_MAX: Final = 2**31 - 1
FLUSH_S: Final = 5.0  # the longest time to write pages to files at the end


class Found(NamedTuple):
    """The prefix of a job.

    Attributes:
        seq: a new sequence that shares the pages that the pool has.
        length: the tokens that need no evaluation, once `restorable` is written.
    """

    seq: KVSequence
    length: int
    restorable: Restorable | None = None


class Prefixes:
    """The tree of prefixes in the pool, and the pages that left it.

    Attributes:
        tree: token sequences in the pool, of jobs that run or have ended.
        cache: pages in memory and in files; None: pages that leave the pool are lost.
    """

    def __init__(
        self, context: Context, store: PageStore | None, eog: Collection[int] = ()
    ) -> None:
        """`eog` are the tokens that end a message."""
        self._context = context
        self._eog = eog
        self._lacking: tuple[Ticket, Sequence[int]] | None = None  # and the free pages
        self.tree = PrefixTree(context.pool)
        self.cache: PageCache | None = None
        if store is not None:
            self.cache = PageCache(context.pool, self.tree, context.kv, store)

    def find(self, ticket: Ticket) -> Found:
        """Return the longest prefix of a job. The last token is left out: its logits are
        needed."""
        if not ticket.params.cache_prompt:
            return Found(self._context.pool.new_sequence(), 0)
        seq = self._shared(ticket)
        fits = seq.can_append(len(ticket.tokens) + 1 - seq.length)
        if self.cache is not None and fits:
            found = self.cache.find(ticket.tokens[:-1], ticket.identity, seq.length)
            if found is not None:
                shared = self.cache.share(found)
                if seq.states is not None and shared.states is not None:
                    shared.states.n_known = seq.states.n_known
                seq.free()
                return Found(shared, found.length, found)
        return Found(seq, seq.length)

    def lack(self, ticket: Ticket | None) -> None:
        """Note that the pools have too few pages for a job, all of whose prefix was found. None:
        prefixes have changed."""
        self._lacking = None if ticket is None else (ticket, self._n_free())

    def lacks(self, ticket: Ticket) -> bool:
        """True if `lack` was noted for a job and no pages have become free: another search, which
        takes long for a long prompt, is of no use."""
        if self._lacking is None or self._lacking[0] is not ticket:
            return False
        return all(now <= n for now, n in zip(self._n_free(), self._lacking[1], strict=True))

    def _n_free(self) -> list[int]:
        return [pool.n_free for pool in self._context.pool.pools]

    def begin(self, ticket: Ticket, found: Found) -> None:
        """Take pages for the tokens of a job, and restore its prefix.

        Nothing may be in flight if there is something to restore.

        Raises:
            OutOfMemoryError, BackendError: see `Context.append` and `PageCache.write`.
        """
        seq, cache, restorable = found.seq, self.cache, found.restorable
        n_new = len(ticket.tokens) - seq.length
        if seq.states is not None and ticket.params.cache_prompt:
            self._mark(seq.states, ticket.tokens, found.length)
        if cache is None or restorable is None:
            self._context.append(seq, n_new)
            return
        pages = cache.load(restorable)
        self._context.append(seq, n_new)
        cache.write(seq, restorable, pages)

    def _mark(self, states: SequenceStates, tokens: Sequence[int], begin: int) -> None:
        """Choose the lengths whose states are kept, of a job that evaluates from `begin` on."""
        n, page_size = len(tokens), self._context.pool.page_size
        n_slots = states.pool.n_idle
        if self.cache is not None:
            n_slots += self.cache.n_states_room
            # a state that goes to memory is at a page's end
            states.rolls = range((n // page_size + 1) * page_size, INT32_MAX, page_size)
        states.marks = prompt_marks(
            begin,
            n,
            states.n_known,
            page_size,
            messages=[i + 1 for i in range(begin, n) if tokens[i] in self._eog],
            n_slots=n_slots,
        )

    def awaited(self, ticket: Ticket) -> Future[Any] | None:
        """What a job waits for before it starts: pages of its prefix that are read from files. None
        if there is nothing, or no time left."""
        if self.cache is None or self.cache.files is None or not ticket.params.cache_prompt:
            return None
        starting = self.cache.files.starting
        if not starting.is_over and len(ticket.tokens) > self._context.pool.page_size:
            return starting.future
        if ticket.fetch is None:
            ticket.fetch = self._fetch(self.cache, ticket) or NOTHING
        return None if ticket.fetch.is_over else ticket.fetch.future

    def forget(self, tokens: Sequence[int], identity: PrefixIdentity = PLAIN) -> int:
        """Remove the pages of `tokens` that no longer prefix needs. Return how many of these tokens
        left the tree."""
        if self.cache is None:
            return self.tree.forget(tokens, identity)
        return self.cache.forget(tokens, identity)

    def close(self) -> None:
        """Write pages to files, if there are any. Nothing may be in flight."""
        if self.cache is not None:
            self.cache.close(FLUSH_S)

    def _shared(self, ticket: Ticket) -> KVSequence:
        """A new sequence with the tokens of a job that the pool holds."""
        seq = self.tree.find(ticket.tokens[:-1], ticket.identity)
        fits = seq.can_append(len(ticket.tokens) + 1 - seq.length)
        n = policy.shared_length(seq.length, fits, self._context.pool.page_size)
        if n < seq.length:
            seq.free()
            seq = self.tree.find(ticket.tokens[:n], ticket.identity)
        return seq

    def _fetch(self, cache: PageCache, ticket: Ticket) -> Fetch | None:
        seq = self.tree.find(ticket.tokens[:-1], ticket.identity)
        n_usable = seq.length
        seq.free()
        return cache.fetch(ticket.tokens[:-1], ticket.identity, n_usable)
