"""The prefix cache: prefixes are found to the token; pages in use are neither lost nor evicted."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from lamella.base.errors import OutOfMemoryError
from lamella.model.kv_prefix import PrefixTree
from lamella.model.kv_sequence import KVPool, KVSequence

SIZE = 4


class World:
    """A pool whose cells hold tokens in place of keys and values."""

    def __init__(self, n_pages: int = 16) -> None:
        self.pool = KVPool(n_pages * SIZE, page_size=SIZE)
        self.tree = PrefixTree(self.pool)
        self.content = np.full(self.pool.pools[0].n_cells_total, -1)

    def find(self, tokens: Sequence[int]) -> KVSequence:
        seq = self.tree.find(tokens)
        assert self.held(seq) == list(tokens[: seq.length])
        return seq

    def extend(self, seq: KVSequence, tokens: Sequence[int]) -> None:
        """Append the tokens that the sequence does not have yet."""
        begin = seq.length
        if begin == len(tokens):
            return
        for _, src, dst, n in seq.append(len(tokens) - begin):
            self.content[dst : dst + n] = self.content[src : src + n]
        self.content[seq.pages[0].cells(begin, len(tokens))] = tokens[begin:]

    def held(self, seq: KVSequence) -> list[int]:
        return [int(token) for token in self.content[seq.pages[0].cells(0, seq.length)]]

    def run(self, *tokens: int) -> int:
        """Evaluate a prompt as an engine does. Return the number of reused tokens."""
        seq = self.find(tokens[:-1])
        n = seq.length
        self.extend(seq, tokens)
        assert self.held(seq) == list(tokens)
        self.end(seq, tokens)
        return n

    def end(self, seq: KVSequence, tokens: Sequence[int]) -> None:
        self.tree.insert(tokens, seq, ended=True)
        seq.free()


def test_prefixes_are_found_to_the_token() -> None:
    w = World()
    assert w.run(1, 2, 3, 4, 5, 6, 7) == 0
    assert w.run(1, 2, 3, 4, 5, 6, 7) == 6  # the last token is always evaluated, for its logits
    assert w.run(1, 2, 3, 4, 5, 6, 9, 9) == 6
    assert w.run(1, 2, 9) == 2
    assert w.run(2, 1) == 0
    assert w.run(1, 2, 3, 4, 5, 6, 9, 9, 9) == 8


def test_a_longer_prefix_replaces_a_shorter_one() -> None:
    w = World()
    for n in range(1, 11):
        assert w.run(*range(n)) == max(n - 1, 0)
        assert len(w.tree) == -(-n // SIZE)
    assert w.run(0, 1) == 1  # found within a longer prefix
    assert len(w.tree) == 3


def test_prefixes_with_equal_beginnings_share_pages() -> None:
    w = World()
    for last in range(5):
        w.run(*range(8), 100 + last)
    assert len(w.tree) == 2 + 5
    assert w.pool.n_free == w.pool.n_pages  # no sequence has them


def test_full_pages_of_a_running_sequence_are_found() -> None:
    w = World()
    first = w.find([])
    w.extend(first, range(10))
    w.tree.insert(range(10), first, ended=False)
    second = w.find(range(9))
    assert second.length == 8
    w.extend(second, [*range(8), 50])
    w.extend(first, range(20))  # neither sequence writes to pages of the other
    assert w.held(second) == [*range(8), 50]
    assert w.held(first) == [*range(20)]
    first.free()
    assert w.held(second) == [*range(8), 50]
    assert w.pool.n_free == w.pool.n_pages - 3


def test_two_equal_running_prompts_are_cached_once() -> None:
    w = World()
    seqs = [w.find([]), w.find([])]
    for seq in seqs:
        w.extend(seq, range(9))
        w.tree.insert(range(9), seq, ended=False)
    for seq in seqs:
        w.end(seq, range(9))
    assert len(w.tree) == 3
    assert w.pool.n_free == w.pool.n_pages


def test_eviction_is_least_recently_used_and_children_first() -> None:
    w = World(n_pages=6)
    w.run(*range(8))
    w.run(*range(100, 108))
    w.find(range(8)).free()  # used again
    w.run(*range(200, 212))  # needs three pages, two are free
    assert lengths(w, 0, 100, 200) == [8, 4, 12]
    w.find(range(100, 108)).free()
    w.run(*range(300, 308))
    assert lengths(w, 0, 100, 200, 300) == [0, 4, 12, 8]


def test_pages_of_running_sequences_never_follow_each_other() -> None:
    w = World(n_pages=9)
    first, second = w.find([]), w.find([])
    w.extend(first, range(8))
    w.extend(second, range(16))
    w.tree.insert(range(8), first, ended=False)
    w.tree.insert(range(16), second, ended=False)
    first.free()
    w.run(*range(100, 120))  # needs the pages of the first prompt
    assert w.held(second) == [*range(16)]
    w.end(second, range(16))
    assert w.pool.n_free == 9


def lengths(w: World, *begins: int) -> list[int]:
    """Return the cached length of each prompt, without a change of the eviction order."""
    return [longest(w.tree, [*range(begin, begin + 12)]) for begin in begins]


def test_a_page_in_use_is_never_evicted() -> None:
    w = World(n_pages=4)
    w.run(*range(8))
    seq = w.find(range(8))
    assert w.pool.n_free == 2
    other = w.pool.new_sequence()
    w.extend(other, range(50, 58))
    assert not seq.can_append(1)
    with pytest.raises(OutOfMemoryError):
        w.pool.new_sequence().append(1)
    assert w.held(seq) == [*range(8)]
    seq.free()
    w.extend(other, range(50, 66))
    assert len(w.tree) == 0


def test_a_long_prompt_of_many_pages() -> None:
    w = World(n_pages=5000)
    w.run(*range(19_000))
    assert w.run(*range(18_001), 5) == 18_001


@pytest.mark.parametrize("seed", range(40))
def test_random_sequences_of_requests(seed: int) -> None:
    chance = random.Random(seed)
    w = World(n_pages=chance.choice([6, 12, 40]))
    running: list[tuple[KVSequence, list[int]]] = []
    prompts: list[list[int]] = [[]]
    for _ in range(300):
        what = chance.random()
        if what < 0.4:
            begin = chance.choice(prompts)
            tokens = begin[: chance.randrange(len(begin) + 1)]
            tokens += [chance.randrange(3) for _ in range(chance.randrange(1, 9))]
            most = longest(w.tree, tokens[:-1])
            seq = w.find(tokens[:-1])
            assert seq.length == most
            if not seq.can_append(len(tokens) - seq.length):
                seq.free()
                continue
            w.extend(seq, tokens)
            w.tree.insert(tokens, seq, ended=False)
            running.append((seq, tokens))
            prompts = [*prompts[-8:], tokens]
        elif running and what < 0.8:
            seq, tokens = chance.choice(running)
            if seq.can_append(1):
                tokens.append(chance.randrange(3))
                w.extend(seq, tokens)
        elif running:
            seq, tokens = running.pop(chance.randrange(len(running)))
            n = chance.randrange(len(tokens) + 1) if chance.random() < 0.2 else len(tokens)
            if chance.random() < 0.8:
                w.tree.insert(tokens[:n], seq, ended=True)
            seq.free()
        for seq, tokens in running:
            assert w.held(seq) == tokens
        used = {int(page) for seq, _ in running for page in seq.pages[0].page_numbers()}
        assert w.pool.n_free == w.pool.n_pages - len(used)
    for seq, _ in running:
        seq.free()
    assert w.pool.n_free == w.pool.n_pages
    everything = w.pool.new_sequence()
    everything.append(w.pool.n_pages * SIZE)
    assert len(w.tree) == 0


def longest(tree: PrefixTree, tokens: list[int]) -> int:
    """Return the longest cached prefix of `tokens`, found by a search of the whole tree."""
    found, open_paths = 0, [(tree._root, tuple[int, ...]())]
    while open_paths:
        node, path = open_paths.pop()
        path += tuple(np.frombuffer(node.key, np.int32).tolist())
        same = [a == b for a, b in zip(path, tokens, strict=False)]
        found = max(found, same.index(False) if False in same else len(same))
        open_paths += [(child, path) for child in node.children.values()]
    return found
