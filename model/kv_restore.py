"""Brings back pages that left the pools: a prompt then has a longer prefix that is not evaluated.

A page that the prefix tree evicts is copied to a store (`page_store`), and maybe on to a file. For
a prompt, the cache looks for the longest prefix whose pages are in the pools or in the store:
groups without a window need all of its pages, groups with one those of the last window. States are
a group too, whose slots are pages: a prefix needs the one of its length. A restored prefix takes
the pages that its evaluation would take, and no others. Full pages only: at most 31 tokens more are
evaluated. Knows no requests. Not thread-safe. Tested by
tests/model/test_kv_restore.py and tests/runtime/test_prompt_cache.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple, Protocol

import numpy as np

from ..alloc.buffer import Bytes
from ..base.errors import LamellaError
from ..base.log import get_logger
from .kv_checkpoints import STEP
from .kv_pages import I32Array
from .kv_prefix import PLAIN, TOKEN_BYTES, Node, PrefixIdentity, PrefixTree, next_chain, root_chain
from .kv_sequence import KVPool, KVSequence
from .page_files import Fetch, Page, PageKey
from .page_store import PageStore
from .state_slots import SlotRef

MANY: Final = 1 << 20  # states that fit into memory without a limit
WORTH: Final = 2  # most bytes of pages to copy, as a multiple of those that evaluation would write

log = get_logger("cache")


class PageMemory(Protocol):
    """The bytes of pages, such as a `KVMemory`. The last group may have states, with slots as
    pages."""

    def page_bytes(self, group: int) -> int: ...

    def read_page(self, group: int, page: int) -> Bytes: ...

    def write_page(self, group: int, page: int, data: Bytes) -> None: ...


class Missing(NamedTuple):
    """A page that the sequence gets as a copy: its place in the sequence and its key, with the node
    whose page it is if the pool has one."""

    place: int
    key: PageKey
    node: Node | None


class Restorable(NamedTuple):
    """A prefix that needs no evaluation.

    Attributes:
        length: its tokens.
        gain: those that the pools alone could not serve.
        shared: the nodes of its first pages, which are shared in pools without a window.
        missing: the pages to write.
        held: those of them that the store had.
    """

    length: int
    gain: int
    shared: Sequence[Node]
    missing: Sequence[Missing]
    held: Mapping[PageKey, Page]


class PageCache:
    """The pages of a pool's prefixes, in the pool, in memory and in files."""

    def __init__(
        self, pool: KVPool, tree: PrefixTree, memory: PageMemory, store: PageStore
    ) -> None:
        self.store = store
        self.files = store.files
        self._pool = pool
        self._tree = tree
        self._memory = memory
        self._whole = [g for g, own in enumerate(pool.pools) if own.window is None]
        # groups that need the last pages of a prefix only
        self._in_part = [g for g, own in enumerate(pool.pools) if own.window is not None]
        self._page_bytes = [memory.page_bytes(g) for g in range(len(pool.pools))]
        self._cell_bytes = sum(self._page_bytes) / pool.page_size  # of a token in all pools
        self._states: int | None = None  # the group
        if pool.slots is not None:
            self._states = len(self._page_bytes)
            self._in_part.append(self._states)
            self._page_bytes.append(memory.page_bytes(self._states))
        self._n_key = TOKEN_BYTES * pool.page_size
        tree.keep = self._keep

    @property
    def n_states_room(self) -> int:
        """The states that fit into memory before a page leaves it."""
        n_bytes = 0 if self._states is None else self._page_bytes[self._states]
        room = self.store.n_room
        return MANY if room is None else room // max(n_bytes, 1)

    # --- to find and to restore ---

    def find(
        self, tokens: Sequence[int], identity: PrefixIdentity, n_usable: int
    ) -> Restorable | None:
        """Return the longest prefix of `tokens` that can be restored from memory now.

        None: it is no longer than `n_usable`, which the tree can serve alone, or not worth it.
        """
        if not len(self.store) and (self.files is None or not self.files.n_pending):
            return None
        held = dict[PageKey, Page]()  # files read for others may push pages out of the store

        def has(key: PageKey) -> bool:
            page = self.store.peek(key)
            if page is not None:
                held[key] = page
            return page is not None

        found = self._find(tokens, identity, n_usable, has)
        return found._replace(held=held) if found else None

    def fetch(self, tokens: Sequence[int], identity: PrefixIdentity, n_usable: int) -> Fetch | None:
        """Begin to read the pages of the longest prefix that are in files only. Return None if
        there are none."""
        files, store = self.files, self.store
        if files is None or not files.is_ready:
            return None
        n_left = 0 if store.limit is None else store.limit // 2  # more could push each other out

        @lru_cache(None)  # it may ask for a page again
        def has(key: PageKey) -> bool:
            nonlocal n_left
            if store.has(key):
                return True
            if not files.has(key):
                return False
            n_left -= self._page_bytes[key.group]
            return n_left >= 0 or store.limit is None

        found = self._find(tokens, identity, n_usable, has)
        keys = [each.key for each in found.missing if each.node is None] if found else []
        keys = [key for key in keys if not store.has(key)]
        worth = self._worth_of(STEP)
        return files.fetch(keys, partial(store.put, worth=worth)) if keys else None

    def share(self, found: Restorable) -> KVSequence:
        """Return a new sequence with the pages of the prefix that pools without a window have, and
        the states if a slot has them."""
        none = np.empty(0, np.int32)
        pages: list[I32Array] = [none] * len(self._pool.pools)
        for g in self._whole:
            pages[g] = np.array([node.pages[g] for node in found.shared], np.int32)
        n = len(found.shared) * self._pool.page_size
        has_states = self._states is not None and n == found.length
        slot = found.shared[-1].place(self._states or 0) if has_states else 0
        return self._pool.sequence_of(n, pages, SlotRef(n, slot) if slot else None)

    def load(self, found: Restorable) -> list[Page]:
        """Return the missing pages, before pages are taken from the pools.

        No computation may be in flight.
        """
        self.store.use([each.key for each in found.missing])
        return [
            found.held[each.key] if each.node is None else self._read(each.node, each.key.group)
            for each in found.missing
        ]

    def write(self, seq: KVSequence, found: Restorable, pages: Sequence[Page]) -> None:
        """Write the missing pages to the sequence, which has positions for the whole prefix.

        Raises:
            BackendError: a device failed.
        """
        seq.prepare(found.length, found.length)
        for each, page in zip(found.missing, pages, strict=True):
            g = each.key.group
            if g == self._states and seq.states is not None:
                seq.states.restore(found.length)
                self._memory.write_page(g, seq.states.slot, page.data)
            else:
                self._memory.write_page(g, seq.pages[g].page(each.place), page.data)
        self.store.counts.n_restored += found.gain

    def forget(self, tokens: Sequence[int], identity: PrefixIdentity = PLAIN) -> int:
        """As `PrefixTree.forget`. Pages of `tokens` that the tree does not have any more leave
        memory and files too."""
        n = self._tree.forget(tokens, identity)
        raw = _raw(tokens)
        path = self._tree.full_path(tokens, identity)
        chain = path[-1].chain() if path else root_chain(identity)
        keys = list[PageKey]()
        for i in range(len(path), len(tokens) // self._pool.page_size):
            chain = next_chain(chain, self._key(raw, i))
            keys += [PageKey(chain, g) for g in range(len(self._page_bytes))]
        self.store.forget(keys)
        if self.files is not None:
            self.files.forget(keys)
        return n

    def close(self, seconds: float) -> None:
        """Write pages to files, the most recently used ones of the pools first. May be called
        twice. No computation may be in flight."""
        if self.files is not None:
            self.files.close(self._all_pages(), seconds)

    # --- pages that leave the pools ---

    def _keep(self, node: Node, groups: Sequence[int]) -> None:
        for g in groups:
            n_bytes = self._page_bytes[g] + self._n_key
            try:
                read = partial(self._read, node, g)
                self.store.keep(PageKey(node.chain(), g), n_bytes, read, self._worth(node, g))
            except (LamellaError, MemoryError) as e:  # the pool gets the page in any case
                self.store.counts.n_dropped += 1
                log.warning("a page of a prompt is lost: %s", e or type(e).__name__)

    def _all_pages(self) -> Iterator[tuple[PageKey, Page]]:
        files = self.files
        assert files is not None
        try:
            for node in self._tree.full_nodes():
                for g in range(len(self._page_bytes)):
                    key = PageKey(node.chain(), g)
                    if node.place(g) and not files.has(key):
                        yield key, self.store.peek(key) or self._read(node, g)
        except LamellaError as e:
            log.warning("pages of prompts are lost: %s", e)
        yield from self.store.newest()

    def _read(self, node: Node, g: int) -> Page:
        return Page(node.key, self._memory.read_page(g, node.place(g)))

    def _worth(self, node: Node, g: int) -> float:
        """The worth of a page, as if there was a state every `STEP` tokens, or of a state."""
        return self._worth_of(self._tree.n_saved(node) if g == self._states else STEP)

    def _worth_of(self, n: int) -> float:
        """The tokens that a byte saves of evaluation: one of `n` tokens and the states after
        them."""
        n_bytes = 0 if self._states is None else self._page_bytes[self._states]
        return n / (n_bytes + n * self._cell_bytes)

    # --- the longest prefix ---

    def _find(
        self,
        tokens: Sequence[int],
        identity: PrefixIdentity,
        n_usable: int,
        has: Callable[[PageKey], bool],
    ) -> Restorable | None:
        size = self._pool.page_size
        if len(tokens) // size * size <= n_usable:
            return None
        path = self._tree.full_path(tokens, identity)
        chains = self._chains(tokens, identity, path, has)
        n = self._servable(path, chains, has)
        gain = n * size - n_usable
        if gain <= 0:
            return None
        missing = list(self._missing(path, chains, n))
        # evaluation reads and writes the states for each token, so a copy of them is always less
        pages = (each.key.group for each in missing if each.key.group != self._states)
        if sum(self._page_bytes[g] for g in pages) > WORTH * gain * self._cell_bytes:
            return None
        return Restorable(n * size, gain, path[:n], missing, {})

    def _chains(
        self,
        tokens: Sequence[int],
        identity: PrefixIdentity,
        path: Sequence[Node],
        has: Callable[[PageKey], bool],
    ) -> list[bytes]:
        """The chain of each page up to the first that a pool without a window and `has` lack."""
        raw, chains = _raw(tokens), [node.chain() for node in path]
        chain = chains[-1] if chains else root_chain(identity)
        for i in range(len(path), len(tokens) // self._pool.page_size):
            chain = next_chain(chain, self._key(raw, i))
            if not all(has(PageKey(chain, g)) for g in self._whole):
                break
            chains.append(chain)
        return chains

    def _servable(
        self, path: Sequence[Node], chains: Sequence[bytes], has: Callable[[PageKey], bool]
    ) -> int:
        """Return the most pages that every group can serve which needs a part of them."""
        n = len(chains)
        while last := max(
            (self._last_lack(path, chains, g, n, has) for g in self._in_part), default=0
        ):
            n = last - 1
        return n

    def _last_lack(
        self,
        path: Sequence[Node],
        chains: Sequence[bytes],
        g: int,
        n: int,
        has: Callable[[PageKey], bool],
    ) -> int:
        """Return the number of pages up to the last one that group `g` lacks; 0 if none."""
        for i in range(n, self._first(g, n), -1):
            in_pool = i <= len(path) and path[i - 1].place(g)
            if not in_pool and not has(PageKey(chains[i - 1], g)):
                return i
        return 0

    def _missing(self, path: Sequence[Node], chains: Sequence[bytes], n: int) -> Iterator[Missing]:
        """The pages to write for the first `n`."""
        for g in self._whole:
            for i in range(len(path), n):
                yield Missing(i, PageKey(chains[i], g), None)
        for g in self._in_part:
            for i in range(self._first(g, n), n):
                node = path[i] if i < len(path) and path[i].place(g) else None
                if node is None or g != self._states:  # else the sequence shares the slot
                    yield Missing(i, PageKey(chains[i], g), node)

    def _first(self, g: int, n: int) -> int:
        if g == self._states:
            return max(n - 1, 0)
        return self._pool.first_page(self._pool.pools[g], n * self._pool.page_size)

    def _key(self, raw: bytes, i: int) -> bytes:
        return raw[i * self._n_key : (i + 1) * self._n_key]


def _raw(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()
