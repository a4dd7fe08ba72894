"""The prefix cache: a tree of the pools' pages, searched by tokens.

A node stands for the tokens of one page. It has their page in every pool without a window, and
maybe in pools with one. Its parent is the page before it, so the path to a node is a prefix.
Prefixes with equal beginnings share nodes. Only a leaf may be a partly filled page. A prefix is
reused up to the greatest length that every pool can serve: a pool with a window needs the pages of
the last window only.

The tree holds a reference to each page. A page that no sequence has counts as free. Each pool
evicts its own pages, the least recently used first. If a page without a window goes, its node goes
too, with all pages, and all nodes after it. Nodes also have states (`kv_checkpoints`).

Sequences with different identities share nothing: each identity has a tree of its own, over the
same pools.

Equal tokens at equal positions have keys and values of equal bits, unless a device takes large
batches over from another one. So reuse does not change results. `kv_restore` keeps pages that are
evicted, and brings them back. Knows no tensors and no requests.
Not thread-safe. Tests: tests/model/test_kv_prefix.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from .kv_checkpoints import Checkpoints
from .kv_pages import I32Array
from .kv_sequence import KVPool, KVSequence

TOKEN_BYTES: Final = 4
N_CHAIN: Final = 32  # bytes


class PrefixIdentity(NamedTuple):
    """What keys and values depend on besides their tokens, in the process of one model.

    `lora` are the scales of all adapters, () if all are 0. `salt` divides those of some clients
    from those of others.
    """

    salt: str = ""
    lora: tuple[float, ...] = ()


PLAIN: Final = PrefixIdentity()


def root_chain(identity: PrefixIdentity) -> bytes:
    """The digest of an identity and no tokens."""
    return blake2b(repr(identity).encode(), digest_size=N_CHAIN).digest()


def next_chain(chain: bytes, key: bytes) -> bytes:
    """The digest of a prefix: of one with the digest `chain`, and of `key`, the tokens after it."""
    return blake2b(key, key=chain, digest_size=N_CHAIN).digest()


class Node:
    """The tokens of one page, as bytes, with their page in each pool and the nodes that follow.

    A page 0 means that the pool has none. A node without a parent is not in the tree.
    """

    __slots__ = ("_chain", "children", "end", "key", "keys", "pages", "parent", "states")

    def __init__(self, parent: Node | None, key: bytes, n_pools: int, chain: bytes = b"") -> None:
        self.parent = parent
        self.key = key
        self.end: int = len(key) // TOKEN_BYTES + (parent.end if parent else 0)
        self.pages = [0] * n_pools
        self.states: dict[int, int] = {}  # slots of states, by length: parent.end < length <= end
        self.children: dict[bytes, Node] = {}
        self.keys: list[bytes] = []  # the children's keys, sorted; none is a prefix of another
        self._chain = chain  # b"": not computed yet; a root has one

    def place(self, group: int) -> int:
        """Return the page in a pool, or the slot of the states of all tokens if `group` is the
        number of pools; 0: there is none."""
        return self.pages[group] if group < len(self.pages) else self.states.get(self.end, 0)

    def chain(self) -> bytes:
        """The digest of the identity and of all tokens up to the page's end."""
        node, later = self, list[Node]()
        while not node._chain:
            later.append(node)
            assert node.parent is not None, "the node is not in the tree"
            node = node.parent
        chain = node._chain
        for node in reversed(later):
            chain = node._chain = next_chain(chain, node.key)
        return chain

    def closest(self, key: bytes) -> tuple[Node | None, int]:
        """Return the child with the longest common prefix with `key`, and its length in tokens."""
        i = bisect_left(self.keys, key)
        found = [(_n_common(near, key), near) for near in self.keys[max(i - 1, 0) : i + 1]]
        n, near = max(found, default=(0, b""))
        return (self.children[near], n) if n else (None, 0)

    def similar(self, key: bytes) -> Iterator[tuple[Node, int]]:
        """Yield the children with a common prefix with `key`, and its length in tokens."""
        first = key[:TOKEN_BYTES]
        for near in islice(self.keys, bisect_left(self.keys, first), None):
            if not first or not near.startswith(first):
                break
            yield self.children[near], _n_common(near, key)


class PrefixTree:
    """The prefixes cached in the pools, which have one `PrefixTree` at most.

    Attributes:
        keep: called with a node of a full page, and the groups whose `Node.place` is evicted next.
    """

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._n_bytes = TOKEN_BYTES * pool.page_size  # of a full page's key
        self._roots = dict[PrefixIdentity, Node]()
        # The least recently used first: all nodes, and those with a page in each pool with a
        # window. Using a page uses those before it as well, so a node comes after its children.
        self._by_age: OrderedDict[Node, None] = OrderedDict()
        self._in_window = dict[int, OrderedDict[Node, None]]()
        self._whole = list[int]()  # the pools without a window
        self._unsure = dict[Node, None]()  # whose pages are not computed yet
        self.keep: Callable[[Node, Sequence[int]], None] | None = None
        self._states = None if pool.slots is None else Checkpoints(pool.slots)
        self._groups = range(len(pool.pools) + (pool.slots is not None))
        if pool.slots is not None:
            assert pool.slots.evict is None, "the pool has a prefix tree already"
            pool.slots.evict = self._evict_states
        for g, own in enumerate(pool.pools):
            assert own.evict is None, "the pool has a prefix tree already"
            if own.window is None:
                self._whole.append(g)
                own.evict = partial(self._evict_nodes, g)
            else:
                self._in_window[g] = OrderedDict()
                own.evict = partial(self._evict_pages, g)

    def __len__(self) -> int:
        """The number of nodes in the tree."""
        return len(self._by_age)

    def find(self, tokens: Sequence[int], identity: PrefixIdentity = PLAIN) -> KVSequence:
        """Return a new sequence that shares the longest usable prefix of `tokens`, maybe empty.

        Its last page may be shared in part; see `KVSequence.append`. Only prefixes that were
        inserted with the same `identity` are shared.
        """
        raw = _raw(tokens)
        root = self._roots.get(identity) or self._new_root(identity)
        path = self._path(root, raw)
        node = path[-1] if path else root
        begin = node.end * TOKEN_BYTES
        key = raw[begin : begin + self._n_bytes]
        last, n_more = node.closest(key)
        n_known = n = node.end + n_more
        if self._states is not None:
            path, n = self._path_to_state(self._states, root, path, raw)
        elif last is not None:
            path.append(last)
        n = self._usable(path, n)
        path = path[: self._pool.page_count(n)]
        pages = [self._pages(path, g, n) for g in range(len(self._pool.pools))]
        state = None if self._states is None else self._states.longest(path, n)
        seq = self._pool.sequence_of(n, pages, state)
        if seq.states is not None:
            seq.states.n_known = n_known
        self._touch(path[-1] if path else root, seq)
        return seq

    def full_path(self, tokens: Sequence[int], identity: PrefixIdentity = PLAIN) -> list[Node]:
        """Return the nodes of the full pages of `tokens`, up to the first one that is missing.

        They have a page in each pool without a window.
        """
        root = self._roots.get(identity)
        path = [] if root is None else self._path(root, _raw(tokens))
        if path and len(path[-1].key) < self._n_bytes:
            path.pop()
        return path

    def n_saved(self, node: Node) -> int:
        """Return how many tokens are evaluated again without the states at a node's end."""
        assert self._states is not None, "no layer has states"
        return self._states.n_saved(node.place(self._groups[-1]))

    def full_nodes(self) -> Iterator[Node]:
        """Yield the nodes of full pages, the most recently used first."""
        return (node for node in reversed(self._by_age) if len(node.key) == self._n_bytes)

    def insert(
        self,
        tokens: Sequence[int],
        seq: KVSequence,
        *,
        ended: bool,
        after: Node | None = None,
        in_flight: bool = False,
        identity: PrefixIdentity = PLAIN,
    ) -> Node:
        """Add the pages of `seq`, whose first positions hold the keys and values of `tokens`.

        With `ended`, the sequence is freed next, and a partly filled page is added too. Tokens that
        the tree has already keep their pages. They get those that they lack in pools with a window.

        Args:
            after: what an earlier call for the same sequence returned. Pages up to there are not
                looked at again.
            in_flight: the keys and values are not computed yet; `confirm` or `discard` comes later.
            identity: of the sequence, see `find`.

        Returns:
            The last node of the path, for `after`.
        """
        assert len(tokens) <= seq.length, f"{len(tokens)} tokens, {seq.length} positions"
        node = after if after is not None and after.parent is not None else self._root(identity)
        raw = _raw(tokens[node.end :])
        for begin in range(0, len(raw), self._n_bytes):
            key = raw[begin : begin + self._n_bytes]
            if len(key) < self._n_bytes and not ended:
                break
            known = self._child(node, key)
            node = known or self._add(node, key, seq)
            is_filled = self._fill(node, key, seq)
            if in_flight and (is_filled or known is None):
                self._unsure[node] = None
        if self._states is not None:
            changed = self._insert_states(self._states, node, seq, len(tokens), ended=ended)
            if in_flight:
                self._unsure |= dict.fromkeys(changed)
        if ended:
            self._touch(node, seq)
        self._prune(node)
        return node

    def _insert_states(
        self, states: Checkpoints, node: Node, seq: KVSequence, n: int, *, ended: bool
    ) -> list[Node]:
        """Add what `seq` keeps of up to `n` tokens, as far as there are nodes. Return the nodes
        that got states."""
        own = seq.states
        assert own is not None, "the sequence is of another pool"
        kept = own.take_kept(min(n, node.end))
        last = [own.at(n)] if ended and own.length <= n else []
        changed = states.add(node, [*kept, *last])
        for _, slot in kept:
            own.pool.drop(slot)
        return changed

    def forget(self, tokens: Sequence[int], identity: PrefixIdentity = PLAIN) -> int:
        """Remove the pages of `tokens` that no longer prefix needs. Return how many of these tokens
        left the tree."""
        node, raw, begin = self._roots.get(identity), _raw(tokens), 0
        while node is not None and begin < len(raw):
            child = self._child(node, raw[begin : begin + self._n_bytes])
            if child is None or begin + len(child.key) > len(raw):
                break
            node, begin = child, begin + len(child.key)
        n_known = n = begin // TOKEN_BYTES
        while node is not None and node.parent is not None and not node.children:
            parent = node.parent
            self._remove(node)
            n, node = parent.end, parent
        return n_known - n

    def confirm(self) -> None:
        """Nothing is in flight any more: all keys and values are computed."""
        self._unsure.clear()

    def discard(self) -> None:
        """Work in flight failed: remove the nodes whose keys and values it computed."""
        for node in self._unsure:
            if node.parent is not None:
                self._remove(node)
        self._unsure.clear()

    def is_unsure(self, seq: KVSequence) -> bool:
        """True if a sequence shares pages or a slot that work in flight computes."""
        states = seq.states
        if states is not None and any(states.slot in node.states.values() for node in self._unsure):
            return True
        return any(
            0 != node.pages[g] == pages.page(self._index(node))
            for node in self._unsure
            for g, pages in enumerate(seq.pages)
        )

    def _path(self, root: Node, raw: bytes) -> list[Node]:
        """Return the nodes whose keys follow each other in `raw`."""
        node, path, begin = root, list[Node](), 0
        while child := node.children.get(raw[begin : begin + self._n_bytes]):
            node = child
            path.append(child)
            begin += len(child.key)
        return path

    def _path_to_state(
        self, states: Checkpoints, root: Node, path: list[Node], raw: bytes
    ) -> tuple[list[Node], int]:
        """Return the nodes up to the longest usable state, and its length. `path` has the nodes
        whose keys are in `raw`; the state may be in one beside them, whose key has common tokens.
        """
        for i in range(len(path), -1, -1):
            node = path[i - 1] if i else root
            begin = node.end * TOKEN_BYTES
            child, n = states.best(node, node.similar(raw[begin : begin + self._n_bytes]))
            if child is not None:
                return [*path[:i], child], n
        return [], 0

    def _root(self, identity: PrefixIdentity) -> Node:
        root = self._roots.get(identity)
        if root is None:
            # forget identities whose prefixes were all evicted
            self._roots = {known: one for known, one in self._roots.items() if one.children}
            root = self._roots[identity] = self._new_root(identity)
        return root

    def _new_root(self, identity: PrefixIdentity) -> Node:
        return Node(None, b"", len(self._pool.pools), root_chain(identity))

    def _index(self, node: Node) -> int:
        return self._pool.page_count(node.end) - 1

    def _usable(self, path: Sequence[Node], n: int) -> int:
        """Return the greatest length up to `n` that every pool can serve."""
        most = n + 1
        while n < most:
            most = n
            if self._states is not None:
                n = self._states.longest(path, n).length
            if n_pages := max((self._last_missing(path, g, n) for g in self._in_window), default=0):
                n = (n_pages - 1) * self._pool.page_size
        return n

    def _last_missing(self, path: Sequence[Node], g: int, n: int) -> int:
        """Return the number of pages up to the last one that pool `g` lacks; 0 if none."""
        first = self._pool.first_page(self._pool.pools[g], n)
        for i in range(self._pool.page_count(n), first, -1):
            if not path[i - 1].pages[g]:
                return i
        return 0

    def _pages(self, path: Sequence[Node], g: int, n: int) -> I32Array:
        first = self._pool.first_page(self._pool.pools[g], n)
        return np.array([node.pages[g] for node in path[first:]], np.int32)

    def _child(self, parent: Node, key: bytes) -> Node | None:
        """Return the child whose key begins with `key`, if there is one."""
        i = bisect_left(parent.keys, key)
        if i < len(parent.keys) and parent.keys[i].startswith(key):
            return parent.children[parent.keys[i]]
        return None

    def _add(self, parent: Node, key: bytes, seq: KVSequence) -> Node:
        """Return a new child. A child whose key is a prefix of `key` is removed."""
        i = bisect_left(parent.keys, key)
        node = Node(parent, key, len(self._pool.pools))
        if i > 0 and key.startswith(parent.keys[i - 1]):
            shorter = parent.children[parent.keys[i - 1]]
            if self._states is not None:
                self._states.move(shorter, node)
            self._remove(shorter)
            i -= 1
        parent.keys.insert(i, key)
        parent.children[key] = node
        self._by_age[node] = None
        for g in self._whole:
            self._cache(node, g, seq)
        return node

    def _fill(self, node: Node, key: bytes, seq: KVSequence) -> bool:
        """Add the pages that a node lacks in pools with a window. Return True if there were any.

        The sequence has tokens of `key` only, which may be fewer than the node's.
        """
        found = False
        for g, ages in self._in_window.items():
            if not node.pages[g] and len(key) == len(node.key) and self._cache(node, g, seq):
                ages[node] = None
                found = True
        return found

    def _cache(self, node: Node, g: int, seq: KVSequence) -> bool:
        page = seq.pages[g].page(self._index(node))
        if page:
            self._pool.pools[g].cache(page)
            node.pages[g] = page
        return page != 0

    def _remove(self, node: Node, *, evicts: bool = False) -> None:
        """Remove a node and all nodes after it. If it `evicts`, their pages may be kept."""
        assert node.parent is not None, "the root is not a page"
        del node.parent.keys[bisect_left(node.parent.keys, node.key)]
        del node.parent.children[node.key]
        rest = [node]
        while rest:
            node = rest.pop()
            rest += node.children.values()
            if evicts:
                self._evicted(node, [g for g in self._groups if node.place(g)])
            node.parent = None
            del self._by_age[node]
            if self._states is not None:
                self._states.remove(node)
            for ages in self._in_window.values():
                ages.pop(node, None)
            for pool, page in zip(self._pool.pools, node.pages, strict=True):
                if page:
                    pool.uncache(page)

    def _prune(self, node: Node) -> None:
        """Remove a node without pages, states and children, and those before it that become such
        nodes."""
        while (
            node.parent is not None
            and not node.children
            and not node.states
            and not any(node.pages)
        ):
            parent = node.parent
            self._remove(node)
            node = parent

    def _touch(self, node: Node, seq: KVSequence) -> None:
        """Mark the path to a node as used, and the pages of `seq` on it in pools with a window, and
        its states."""
        if self._states is not None and seq.states is not None:
            self._states.touch(seq.states.slot)
        while node.parent is not None:
            self._by_age.move_to_end(node)
            for g, ages in self._in_window.items():
                if node.pages[g] and node.pages[g] == seq.pages[g].page(self._index(node)):
                    ages.move_to_end(node)
            node = node.parent

    def _evict_nodes(self, g: int, n: int) -> None:
        """Free `n` or more pages of a pool without a window, the least recently used first."""
        for node in self._idle(self._by_age, g, n):
            if node.parent is not None:
                self._remove(node, evicts=True)

    def _evict_pages(self, g: int, n: int) -> None:
        """Free `n` pages of a pool with a window. Their nodes stay."""
        for node in self._idle(self._in_window[g], g, n):
            self._evicted(node, (g,))
            del self._in_window[g][node]
            self._pool.pools[g].uncache(node.pages[g])
            node.pages[g] = 0
            self._prune(node)

    def _evict_states(self, n: int) -> None:
        """Free `n` slots of states. Nodes without pages and states leave."""
        assert self._states is not None, "no layer has states"

        def keep(node: Node, length: int) -> None:
            if length == node.end:
                self._evicted(node, self._groups[-1:])

        for _ in range(n):
            node = self._states.evict(keep)
            if node is not None and node.parent is not None:
                self._prune(node)

    def _evicted(self, node: Node, groups: Sequence[int]) -> None:
        """Offer pages and states to `keep`, if they are full and computed."""
        if self.keep is None or len(node.key) < self._n_bytes:
            return
        node.chain()  # those after it need it, and it leaves its parent
        if node not in self._unsure:
            self.keep(node, groups)

    def _idle(self, nodes: Iterable[Node], g: int, n: int) -> list[Node]:
        """Return the first `n` nodes whose page in pool `g` no sequence has."""
        pool = self._pool.pools[g]
        return list(islice((node for node in nodes if pool.is_evictable(node.pages[g])), n))


def _raw(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()


def _n_common(a: bytes, b: bytes) -> int:
    """Return the number of leading tokens that both have in common."""
    n = min(len(a), len(b)) // TOKEN_BYTES
    differ = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    return int(differ.argmax()) if differ.any() else n
