"""The prefix cache: a tree of the KV pool's pages, searched by tokens.

A node is a page and the tokens whose keys and values it holds. Its parent is the page before it, so
the path to a node is a prefix. Prefixes with equal beginnings share nodes. Only a leaf may be a
partly filled page. The tree holds a reference to each page. A page that no sequence has counts as
free: the pool evicts the least recently used pages first, and a page only after its children.

Equal tokens at equal positions have keys and values of equal bits, unless a device takes large
batches over from another one. So reuse does not change results. Knows no tensors and no requests.
Not thread-safe. Tests: tests/model/test_kv_prefix.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np

from .kv_pages import KVSequence, PagePool

TOKEN_BYTES: Final = 4


class Node:
    """A page in the tree: its tokens as bytes, and the pages that follow it."""

    __slots__ = ("children", "key", "keys", "page", "parent")

    def __init__(self, parent: Node | None, key: bytes, page: int) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.children: dict[bytes, Node] = {}
        self.keys: list[bytes] = []  # the children's keys, sorted; none is a prefix of another

    def closest(self, key: bytes) -> tuple[Node | None, int]:
        """Return the child with the longest common prefix with `key`, and its length in tokens."""
        i = bisect_left(self.keys, key)
        found = [(_n_common(near, key), near) for near in self.keys[max(i - 1, 0) : i + 1]]
        n, near = max(found, default=(0, b""))
        return (self.children[near], n) if n else (None, 0)


class PrefixTree:
    """The prefixes cached in a pool. A pool has one tree at most."""

    def __init__(self, pool: PagePool) -> None:
        assert pool.evict is None, "the pool has a prefix tree already"
        self._pool = pool
        self._n_bytes = TOKEN_BYTES * pool.page_size  # of a full page's key
        self._root = Node(None, b"", 0)
        # the least recently used first. Using a page uses those before it as well, so a page comes
        # after its children.
        self._by_age: OrderedDict[Node, None] = OrderedDict()
        pool.evict = self._evict

    def __len__(self) -> int:
        """The number of pages in the tree."""
        return len(self._by_age)

    def find(self, tokens: Sequence[int]) -> KVSequence:
        """Return a new sequence that shares the longest cached prefix of `tokens`, maybe empty.

        Its last page may be shared in part; see `KVSequence.append`.
        """
        raw = _raw(tokens)
        node, pages, begin = self._root, [], 0
        while child := node.children.get(raw[begin : begin + self._n_bytes]):
            node = child
            pages.append(child.page)
            begin += len(child.key)
        last, n_more = node.closest(raw[begin : begin + self._n_bytes])
        if last is not None:
            pages.append(last.page)
        self._touch(last or node)
        return self._pool.sequence_of(np.array(pages, np.int32), begin // TOKEN_BYTES + n_more)

    def insert(self, tokens: Sequence[int], seq: KVSequence, *, ended: bool) -> None:
        """Add the pages of `seq`, whose first positions hold the keys and values of `tokens`.

        With `ended`, the sequence is freed next, and all pages are added. Without it, only full
        pages are added, up to the first page whose tokens the tree has in another page. So a page
        in use always has its parent in use, which eviction needs.
        """
        assert len(tokens) <= seq.length, f"{len(tokens)} tokens, {seq.length} positions"
        raw, node = _raw(tokens), self._root
        for i, page in enumerate(seq.page_numbers().tolist()):
            key = raw[self._n_bytes * i : self._n_bytes * (i + 1)]
            if not key or (len(key) < self._n_bytes and not ended):
                break
            child = self._add(node, key, page)
            if child.page != page and not ended:
                break
            node = child
        self._touch(node)

    def _add(self, parent: Node, key: bytes, page: int) -> Node:
        """Return the child whose key begins with `key`, or a new child for it.

        A child whose key is a prefix of `key` is replaced.
        """
        i = bisect_left(parent.keys, key)
        if i < len(parent.keys) and parent.keys[i].startswith(key):
            return parent.children[parent.keys[i]]
        if i > 0 and key.startswith(parent.keys[i - 1]):
            self._remove(parent.children[parent.keys[i - 1]])
            i -= 1
        node = Node(parent, key, page)
        parent.keys.insert(i, key)
        parent.children[key] = node
        self._by_age[node] = None
        self._pool.cache(page)
        return node

    def _remove(self, node: Node) -> None:
        assert node.parent is not None, "the root is not a page"
        assert not node.children, f"page {node.page} has children"
        del node.parent.keys[bisect_left(node.parent.keys, node.key)]
        del node.parent.children[node.key]
        del self._by_age[node]
        self._pool.uncache(node.page)

    def _touch(self, node: Node | None) -> None:
        while node is not None and node.parent is not None:
            self._by_age.move_to_end(node)
            node = node.parent

    def _evict(self, n: int) -> None:
        """Free `n` pages that only the tree refers to, the least recently used first.

        A page comes after its children in `_by_age`, and is in use if a child is. So a page is
        removed after its children.
        """
        victims: list[Node] = []
        for node in self._by_age:
            if self._pool.is_evictable(node.page):
                victims.append(node)
                if len(victims) == n:
                    break
        for node in victims:
            self._remove(node)


def _raw(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()


def _n_common(a: bytes, b: bytes) -> int:
    """Return the number of leading tokens that both have in common."""
    n = min(len(a), len(b)) // TOKEN_BYTES
    differ = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    return int(differ.argmax()) if differ.any() else n
