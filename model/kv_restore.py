"""Brings back pages that left the pools: a prompt then has a longer prefix that is not evaluated.

A page that the prefix tree evicts is copied to a store (`page_store`), and maybe on to a file. For
a prompt, the cache looks for the longest prefix whose pages are in the pools or in the store:
groups without a window need all of its pages, groups with one those of the last window. A restored
prefix takes the pages that its evaluation would take, and no others. Full pages only: at most 31
tokens more are evaluated. Knows no requests. Not thread-safe. Tested by
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
from .kv_pages import I32Array
from .kv_prefix import PLAIN, TOKEN_BYTES, Node, PrefixIdentity, PrefixTree, next_chain, root_chain
from .kv_sequence import KVPool, KVSequence
from .page_files import Fetch, Page, PageKey
from .page_store import PageStore

WORTH: Final = 2  # most bytes to copy, as a multiple of those that evaluation would write

log = get_logger("cache")


class PageMemory(Protocol):
    """The bytes of pages, such as a `KVMemory`."""

    def page_bytes(self, group: int) -> int: ...

    def read_page(self, group: int, page: int) -> Bytes: ...

    def write_page(self, group: int, page: int, data: Bytes) -> None: ...


class Missing(NamedTuple):
    """A page that the pool of a group lacks: its place in the sequence and its key. `node` has it
    in the pool, but the sequence gets a copy."""

    place: int
    key: PageKey
    node: Node | None


class Restorable(NamedTuple):
    """A prefix that needs no evaluation.

    Attributes:
        length: its tokens.
        shared: the nodes of its first pages, which are shared in pools without a window.
        missing: the pages to write.
        held: those of them that the store had.
    """

    length: int
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
        self._in_window = [g for g, own in enumerate(pool.pools) if own.window is not None]
        self._page_bytes = [memory.page_bytes(g) for g in range(len(pool.pools))]
        self._n_key = TOKEN_BYTES * pool.page_size
        tree.keep = self._keep

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
            n_left -= self._page_bytes[key.group]
            return (n_left >= 0 or store.limit is None) and files.has(key)

        found = self._find(tokens, identity, n_usable, has)
        keys = [each.key for each in found.missing if each.node is None] if found else []
        keys = [key for key in keys if not store.has(key)]
        return files.fetch(keys, store.put) if keys else None

    def share(self, found: Restorable) -> KVSequence:
        """Return a new sequence with the pages of the prefix that pools without a window have."""
        none = np.empty(0, np.int32)
        pages: list[I32Array] = [none] * len(self._page_bytes)
        for g in self._whole:
            pages[g] = np.array([node.pages[g] for node in found.shared], np.int32)
        return self._pool.sequence_of(len(found.shared) * self._pool.page_size, pages)

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
            self._memory.write_page(g, seq.pages[g].page(each.place), page.data)
        self.store.counts.n_restored += found.length - len(found.shared) * self._pool.page_size

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
                self.store.keep(PageKey(node.chain(), g), n_bytes, read)
            except (LamellaError, MemoryError) as e:  # the pool gets the page in any case
                self.store.counts.n_dropped += 1
                log.warning("a page of a prompt is lost: %s", e or type(e).__name__)

    def _all_pages(self) -> Iterator[tuple[PageKey, Page]]:
        files = self.files
        assert files is not None
        try:
            for node in self._tree.full_nodes():
                for g, page in enumerate(node.pages):
                    key = PageKey(node.chain(), g)
                    if page and not files.has(key):
                        yield key, self.store.peek(key) or self._read(node, g)
        except LamellaError as e:
            log.warning("pages of prompts are lost: %s", e)
        yield from self.store.newest()

    def _read(self, node: Node, g: int) -> Page:
        return Page(node.key, self._memory.read_page(g, node.pages[g]))

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
        n_bytes = sum(self._page_bytes[each.key.group] for each in missing)
        if n_bytes * size > WORTH * gain * sum(self._page_bytes):
            return None
        return Restorable(n * size, path[:n], missing, {})

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
        """Return the most pages that every group with a window can serve."""
        n = len(chains)
        while last := max(
            (self._last_lack(path, chains, g, n, has) for g in self._in_window), default=0
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
            in_pool = i <= len(path) and path[i - 1].pages[g]
            if not in_pool and not has(PageKey(chains[i - 1], g)):
                return i
        return 0

    def _missing(self, path: Sequence[Node], chains: Sequence[bytes], n: int) -> Iterator[Missing]:
        """The pages to write for the first `n`."""
        for g in self._whole:
            for i in range(len(path), n):
                yield Missing(i, PageKey(chains[i], g), None)
        for g in self._in_window:
            for i in range(self._first(g, n), n):
                node = path[i] if i < len(path) and path[i].pages[g] else None
                yield Missing(i, PageKey(chains[i], g), node)

    def _first(self, g: int, n: int) -> int:
        return self._pool.first_page(self._pool.pools[g], n * self._pool.page_size)

    def _key(self, raw: bytes, i: int) -> bytes:
        return raw[i * self._n_key : (i + 1) * self._n_key]


def _raw(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()
