"""Prefixes that the KV pool still holds: a tree of pages, found by the tokens in them.

A node is a page and the tokens whose keys and values it holds; its parent is the page before. So
the path to a node is a prefix, and prefixes that begin alike share their pages. Only a leaf may be
a page that is not full. The tree has a reference of its own to each page. A page that no sequence
refers to counts as free: when the pool runs short, those used longest ago go first, and ends before
beginnings.

Keys and values of equal tokens at equal positions are equal to the bit, whoever computed them, if
no device takes large batches over from another: then what is reused changes nothing. Knows no
tensors and no requests. For one thread at a time. Tests: tests/model/test_kv_prefix.py.
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
    """A page: its tokens as bytes, and the pages that follow it in some prefix."""

    __slots__ = ("children", "key", "keys", "page", "parent")

    def __init__(self, parent: Node | None, key: bytes, page: int) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.children: dict[bytes, Node] = {}
        self.keys: list[bytes] = []  # of the children, sorted; none begins with another

    def closest(self, key: bytes) -> tuple[Node | None, int]:
        """The child that has most tokens in common with `key`, and how many."""
        i = bisect_left(self.keys, key)
        found = [(_n_common(near, key), near) for near in self.keys[max(i - 1, 0) : i + 1]]
        n, near = max(found, default=(0, b""))
        return (self.children[near], n) if n else (None, 0)


class PrefixTree:
    """What is remembered of a pool's sequences; one for a pool."""

    def __init__(self, pool: PagePool) -> None:
        assert pool.evict is None, "two trees would not know of each other's pages"
        self._pool = pool
        self._n_bytes = TOKEN_BYTES * pool.page_size  # of a full page's key
        self._root = Node(None, b"", 0)
        # those used longest ago first; a page is always used together with those before it, and
        # stands behind those that follow it
        self._by_age: OrderedDict[Node, None] = OrderedDict()
        pool.evict = self._evict

    def __len__(self) -> int:
        """Pages that are remembered."""
        return len(self._by_age)

    def find(self, tokens: Sequence[int]) -> KVSequence:
        """A new sequence that shares the longest prefix of `tokens` there is, of length 0 if none.

        Its last page may be shared in part: see `KVSequence.append`.
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
        """Remember that the first positions of `seq` hold the keys and values of `tokens`.

        `ended`: the sequence will not go on and is freed next. Else only full pages are taken, and
        only while the tree's pages are the sequence's own: so a page of the tree is never in use
        without those before it, which eviction rests on.
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
        """The child that holds these tokens, and maybe more: one that is there, or a new one."""
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
        self._pool.keep(page)
        return node

    def _remove(self, node: Node) -> None:
        assert node.parent is not None, "the root is no page"
        assert not node.children, "a page goes only after those that follow it"
        del node.parent.keys[bisect_left(node.parent.keys, node.key)]
        del node.parent.children[node.key]
        del self._by_age[node]
        self._pool.drop(node.page)

    def _touch(self, node: Node | None) -> None:
        while node is not None and node.parent is not None:
            self._by_age.move_to_end(node)
            node = node.parent

    def _evict(self, n: int) -> None:
        """Free `n` pages that only the tree refers to. A page stands behind those that follow it,
        and is in use if one of them is: so what goes has nothing left that follows it."""
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
    """Tokens that both begin with."""
    n = min(len(a), len(b)) // TOKEN_BYTES
    differ = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    return int(differ.argmax()) if differ.any() else n
