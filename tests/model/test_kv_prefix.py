"""The prefix cache: prefixes are found to the token; pages in use are neither lost nor evicted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from matrix import first

from lamella.base.errors import OutOfMemoryError
from lamella.model.kv_checkpoints import prompt_marks
from lamella.model.kv_groups import window_cells
from lamella.model.kv_pages import PagePool
from lamella.model.kv_prefix import PLAIN, Node, PrefixIdentity, PrefixTree
from lamella.model.kv_sequence import KVPool, KVSequence
from lamella.model.layer_memory import Window
from lamella.model.params import ContextParams
from lamella.model.state_slots import NO_SLOT, SlotPool

SIZE = 4


class World:
    """Pools whose cells hold tokens in place of keys and values.

    There is a pool without a window if `n_pages` is not 0, and one for each of `windows`, large
    enough for `n_seqs` sequences and `swa_prefix` tokens. Slots for states, of which `n_kept` are
    for the tree, hold all tokens of a sequence.
    """

    def __init__(
        self,
        n_pages: int = 16,
        windows: Sequence[Window] = (),
        *,
        n_seqs: int = 4,
        swa_prefix: int = 0,
        n_ubatch: int = 5,
        n_kept: int | None = None,
    ) -> None:
        self.n_ubatch = n_ubatch
        params = ContextParams(n_parallel=n_seqs, swa_prefix=swa_prefix)
        pools = [PagePool(n_pages * SIZE, page_size=SIZE)] if n_pages else []
        for window in windows:
            n_cells = window_cells(window.n_swa, params, n_ubatch, SIZE)
            pools.append(PagePool(n_cells, window=window, page_size=SIZE))
        slots = None if n_kept is None else SlotPool(n_seqs, n_kept)
        self.pool = KVPool((n_pages or 40) * SIZE, pools, page_size=SIZE, slots=slots)
        self.tree = PrefixTree(self.pool)
        self.contents = [np.full(pool.n_cells_total, -1) for pool in pools]
        self.states = {NO_SLOT: list[int]()}  # the tokens of each slot
        self.cursors = WeakKeyDictionary[KVSequence, Node]()

    def find(self, tokens: Sequence[int], identity: PrefixIdentity = PLAIN) -> KVSequence:
        seq = self.tree.find(tokens, identity)
        assert self.held(seq, tokens) == list(tokens[: seq.length])
        return seq

    def extend(self, seq: KVSequence, tokens: Sequence[int], *, share: bool = False) -> None:
        """Append and evaluate the tokens that the sequence does not have yet."""
        begin = seq.length
        if begin == len(tokens):
            return
        for g, src, dst, n in seq.append(len(tokens) - begin):
            self.contents[g][dst : dst + n] = self.contents[g][src : src + n]
        for at in range(begin, len(tokens), self.n_ubatch):
            end = min(at + self.n_ubatch, len(tokens))
            seq.prepare(at, end)
            for pages, content in zip(seq.pages, self.contents, strict=True):
                content[pages.cells(at, end)] = tokens[at:end]
            if seq.states is not None:
                for (src, dst), token in zip(seq.states.run(at, end), tokens[at:end], strict=True):
                    self.states[int(dst)] = [*self.states[int(src)], token]
            if share:
                self.share(seq, tokens[:end])

    def share(
        self,
        seq: KVSequence,
        tokens: Sequence[int],
        *,
        ended: bool = False,
        identity: PrefixIdentity = PLAIN,
    ) -> None:
        after = self.cursors.get(seq)
        self.cursors[seq] = self.tree.insert(
            tokens, seq, ended=ended, after=after, identity=identity
        )

    def held(self, seq: KVSequence, tokens: Sequence[int]) -> list[int]:
        """Return the tokens in a sequence's cells; those of `tokens` that no window sees. If they
        are right but those of its slot are not, return these."""
        found = list(tokens[: seq.length])
        for pages, content in zip(seq.pages, self.contents, strict=True):
            begin = self.pool.first_page(pages.pool, seq.length) * SIZE
            begin = min(begin, seq.length)
            seen = [int(token) for token in content[pages.cells(begin, seq.length)]]
            if seen != found[begin:]:
                return seen
        if seq.states is None:
            return found
        return self.states[seq.states.slot or NO_SLOT]

    def run(self, *tokens: int) -> int:
        """Evaluate a prompt as an engine does. Return the number of reused tokens."""
        seq = self.find(tokens[:-1])
        n = seq.length
        self.extend(seq, tokens, share=True)
        assert self.held(seq, tokens) == list(tokens)
        self.end(seq, tokens)
        return n

    def end(self, seq: KVSequence, tokens: Sequence[int]) -> None:
        self.share(seq, tokens, ended=True)
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


def test_identities_share_nothing() -> None:
    w = World(n_pages=16)
    salted, adapted = PrefixIdentity("a"), PrefixIdentity(lora=(0.5, 0.0))
    both, other = PrefixIdentity("a", (0.5, 0.0)), PrefixIdentity(lora=(0.0, 0.5))
    expected = [(PLAIN, 0), (salted, 0), (salted, 7), (PLAIN, 7), (PrefixIdentity("b"), 0)]
    expected += [(adapted, 0), (both, 0), (other, 0), (both, 7), (adapted, 7), (PLAIN, 7)]
    for identity, n_shared in expected:
        seq = w.find(range(7), identity)
        assert seq.length == n_shared
        w.extend(seq, range(8))
        w.share(seq, range(8), ended=True, identity=identity)
        seq.free()
    assert len(w.tree) == 6 * 2


def test_identities_without_prefixes_are_forgotten() -> None:
    w = World(n_pages=8)
    for n in range(100):
        seq = w.find(range(7), PrefixIdentity(f"salt {n}"))
        w.extend(seq, range(8))
        w.share(seq, range(8), ended=True, identity=PrefixIdentity(f"salt {n}"))
        seq.free()
        assert w.find(range(9), PrefixIdentity(f"other salt {n}")).length == 0
    assert len(w.tree) == 8 and len(w.tree._roots) <= 5


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
    assert w.held(second, [*range(8), 50]) == [*range(8), 50]
    assert w.held(first, [*range(20)]) == [*range(20)]
    first.free()
    assert w.held(second, [*range(8), 50]) == [*range(8), 50]
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
    assert w.held(second, [*range(16)]) == [*range(16)]
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
    assert w.held(seq, [*range(8)]) == [*range(8)]
    seq.free()
    w.extend(other, range(50, 66))
    assert len(w.tree) == 0


def test_a_long_prompt_of_many_pages() -> None:
    w = World(n_pages=5000)
    w.run(*range(19_000))
    assert w.run(*range(18_001), 5) == 18_001


# --- windows ---


def test_a_prefix_needs_the_pages_of_its_last_window_only() -> None:
    w = World(40, [Window(8)], n_seqs=1, swa_prefix=8 * SIZE)
    w.run(*range(60))
    own = w.pool.pools[1]
    assert own.n_pages < 60 // SIZE  # the first pages of the window's pool were evicted
    assert len(w.tree) == 15
    assert w.run(*range(40), 500) == 40
    assert w.run(*range(59), 501) == 59
    assert w.run(*range(4), 502) == 0
    assert w.run(*range(4), 503) == 4


def test_pages_of_windows_are_evicted_one_by_one() -> None:
    """A prefix without its last window is evaluated again, which adds the pages again."""
    w = World(60, [Window(8)], n_seqs=1, swa_prefix=6 * SIZE)
    w.run(*range(30))
    w.run(*range(100, 160))  # takes all pages of the window's pool
    assert len(w.tree) == 8 + 15
    assert w.run(*range(30)) == 0
    assert w.run(*range(30)) == 29
    assert len(w.tree) == 8 + 15


def test_shared_prompts_stay_while_they_are_used() -> None:
    """The last window of a system prompt stays, although many chats go through the pool."""
    w = World(200, [Window(8), Window(12, chunked=True)], n_seqs=2, swa_prefix=40)
    system = [*range(50)]
    assert w.run(*system, 1000) == 0
    for chat in range(20):
        assert w.run(*system, *[1001 + chat] * (5 + chat)) >= 48


def test_the_smallest_pool_has_a_page_for_a_copy() -> None:
    w = World(16, [Window(3)], n_seqs=1, n_ubatch=1)
    w.run(*range(5))
    assert w.run(*range(5), 9) == 5  # positions 3 and 4 are in two pages, and the second is copied


def test_pages_of_failed_work_leave_the_tree() -> None:
    w = World(40, [Window(8)])
    w.run(*range(10))
    seq = w.find(range(30))
    assert not w.tree.is_unsure(seq)
    w.extend(seq, range(30))
    w.tree.insert(range(30), seq, ended=False, in_flight=True)
    other = w.find(range(30))
    assert other.length == 28
    assert w.tree.is_unsure(other)
    assert not w.tree.is_unsure(w.find(range(8)))
    w.tree.discard()
    assert longest(w.tree, [*range(30)]) == 8  # full pages that were there before
    assert not w.tree.is_unsure(other)
    for pages in (seq, other):
        pages.free()


def test_a_forgotten_prefix_leaves_what_others_need() -> None:
    w = World(60)
    w.run(*range(10))
    w.run(*range(8), 20, 21, 22)  # both share two pages of 4
    assert w.tree.forget([*range(8), 20]) == 0  # within a page of a longer prefix
    assert longest(w.tree, [*range(8), 20, 21, 22]) == 11
    assert w.tree.forget(range(10)) == 2
    assert longest(w.tree, [*range(10)]) == 8
    assert w.tree.forget([*range(8), 20, 21, 22]) == 11
    assert len(w.tree) == 0


def test_confirmed_pages_stay() -> None:
    w = World(40, [Window(8)])
    seq = w.find([])
    w.extend(seq, range(30))
    w.tree.insert(range(30), seq, ended=False, in_flight=True)
    w.tree.confirm()
    w.tree.discard()
    seq.free()
    assert longest(w.tree, [*range(30)]) == 28


@pytest.mark.parametrize("windows", [(), (Window(8),)])
def test_a_long_prompt_is_inserted_without_a_walk_from_the_root(
    windows: Sequence[Window], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of a chunk does not depend on the length of the prompt before it."""
    w = World(5000, windows, swa_prefix=100)
    seq = w.find([])
    seen, child_of = list[Node](), w.tree._child

    def watched(node: Node, key: bytes) -> Node | None:
        seen.append(node)
        return child_of(node, key)

    monkeypatch.setattr(w.tree, "_child", watched)
    w.extend(seq, range(4000), share=True)
    assert len(seen) == 4000 // SIZE


@pytest.mark.parametrize(
    ("begin", "n_tokens", "n_known", "marks"),
    [
        (0, 1, 0, []),
        (0, 5, 0, [4]),
        (0, 40, 0, [32, 39]),
        (0, 39, 0, [38]),  # eight tokens before the end are not a page
        (0, 2000, 0, [512, 1024, 1984, 1999]),
        (1024, 2000, 1024, [1984, 1999]),
        (512, 2000, 700, [672, 1024, 1984, 1999]),  # where it parts from an earlier prompt
        (0, 40_000, 0, [7168, 23552, 31744, 35840, 37888, 38912, 39424, 39968, 39999]),
    ],
)
def test_the_lengths_of_a_prompt_that_are_kept(
    begin: int, n_tokens: int, n_known: int, marks: list[int]
) -> None:
    assert sorted(prompt_marks(begin, n_tokens, n_known, 32)) == marks


@pytest.mark.parametrize(
    ("n_slots", "messages", "marks"),
    [
        (4, [], [512, 1024, 1984, 1999]),
        (5, [], [512, 1024, 1536, 1984, 1999]),
        (99, [], [512, 1024, 1536, 1984, 1999]),
        (5, [70, 300], [288, 512, 1024, 1984, 1999]),  # the last message first
        (6, [70, 300], [64, 288, 512, 1024, 1984, 1999]),
        (99, [1999, 300, 20], [288, 512, 1024, 1536, 1984, 1999]),
    ],
)
def test_more_lengths_are_kept_while_there_are_slots(
    n_slots: int, messages: list[int], marks: list[int]
) -> None:
    found = prompt_marks(0, 2000, 0, 32, messages=messages, n_slots=n_slots)
    assert sorted(found) == marks


def test_the_most_valuable_lengths_are_first() -> None:
    found = prompt_marks(0, 1100, 100, 32, messages=[50, 200], n_slots=9)
    assert found == (1088, 96, 1099, 512, 192, 32, 1024)


def test_states_of_a_failed_step_are_forgotten() -> None:
    """There is no pool of pages: nodes have nothing but states."""
    w = World(0, n_kept=4)
    seq = w.find([])
    assert seq.states is not None
    seq.states.marks = frozenset({3})
    w.extend(seq, [1, 2, 3, 4, 5])
    w.tree.insert([1, 2, 3, 4, 5], seq, ended=False, in_flight=True)
    found = w.find([1, 2, 3, 9])
    assert found.length == 3
    assert w.tree.is_unsure(found)
    w.tree.confirm()
    assert not w.tree.is_unsure(found)
    w.tree.insert([1, 2, 3, 4, 5], seq, ended=True, in_flight=True)
    assert w.find([1, 2, 3, 4, 5, 6]).length == 5
    w.tree.discard()
    assert w.find([1, 2, 3, 4, 5, 6]).length == 3


def test_the_least_recently_used_state_is_evicted() -> None:
    w = World(0, n_seqs=1, n_kept=1)  # three slots
    for last in (7, 8, 9):
        w.run(1, 2, last)
    assert w.find([1, 2, 7]).length == 3
    w.run(5, 6)
    assert [w.find([1, 2, last]).length for last in (7, 8, 9)] == [3, 0, 3]


def test_the_state_that_saves_least_is_evicted() -> None:
    w = World(0, n_seqs=1, n_kept=1)  # three slots
    w.run(*range(1, 20))
    for token in (30, 31, 32):
        w.run(token)
    assert w.find([*range(1, 20), 5]).length == 19  # the oldest, but of 19 tokens
    assert [w.find([token, 5]).length for token in (30, 31, 32)] == [0, 1, 1]


def test_a_valuable_state_that_nobody_uses_is_evicted_at_last() -> None:
    w = World(0, n_seqs=1, n_kept=1)
    w.run(*range(1, 10))
    for token in range(30, 50):
        w.run(token)
    assert w.find([*range(1, 10), 5]).length == 0


WORLDS = {
    "full": (),
    "1": (Window(1),),
    "7": (Window(7),),
    "chunks": (Window(6, chunked=True),),
    "several": (Window(3), Window(14), Window(5, chunked=True)),
}


@pytest.mark.parametrize(
    ("name", "has_full", "has_states"),
    [
        *product(WORLDS, [True], [False, True]),
        *product([*WORLDS][1:], [False], [False, True]),
        ("full", False, True),
    ],
)
@pytest.mark.parametrize("seed", first(2, range(8)))
def test_random_sequences_of_requests(
    name: str, has_full: bool, has_states: bool, seed: int
) -> None:
    chance = random.Random(seed)
    windows = WORLDS[name]
    n_pages, n_seqs = chance.choice([6, 12, 40]) if has_full else 0, chance.randrange(2, 9)
    n_ubatch, swa_prefix = chance.choice([1, 5]), chance.choice([0, 10, 60])
    n_kept = chance.choice([0, 2, 10]) if has_states else None
    w = World(
        n_pages, windows, n_seqs=n_seqs, swa_prefix=swa_prefix, n_ubatch=n_ubatch, n_kept=n_kept
    )
    running: list[tuple[KVSequence, list[int]]] = []
    prompts: list[list[int]] = [[]]
    for _ in range(300):
        what = chance.random()
        if what < 0.4 and len(running) < n_seqs:
            begin = chance.choice(prompts)
            tokens = begin[: chance.randrange(len(begin) + 1)]
            tokens += [chance.randrange(3) for _ in range(chance.randrange(1, 9))]
            aligned, most = usable(w.tree, tokens[:-1])
            seq = w.find(tokens[:-1])
            if windows and has_states:
                assert seq.length <= most
            else:
                assert seq.length == most if not windows else aligned <= seq.length <= most
            if not seq.can_append(len(tokens) - seq.length):
                n_pages = w.pool.page_count(len(tokens))
                assert n_pages > w.pool.width or n_pages >= w.pool.pools[0].n_free
                assert has_full or n_pages > w.pool.width  # pools with windows have room
                seq.free()
                continue
            mark_lengths(seq, tokens, chance)
            w.extend(seq, tokens, share=chance.random() < 0.8)
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
                w.share(seq, tokens[:n], ended=True)
            seq.free()
        for seq, tokens in running:
            assert w.held(seq, tokens) == tokens
        for g, pool in enumerate(w.pool.pools):
            used = {int(page) for seq, _ in running for page in seq.pages[g].page_numbers()}
            assert pool.n_free == pool.n_pages - len(used)
        check_slots(w, [seq for seq, _ in running])
    for seq, _ in running:
        seq.free()
    assert w.pool.n_free == w.pool.n_pages
    for pool in (*w.pool.pools, *([w.pool.slots] if w.pool.slots else [])):
        assert pool.n_free == pool.n_pages
        pool.take(pool.n_pages)
    assert len(w.tree) == 0


def mark_lengths(seq: KVSequence, tokens: Sequence[int], chance: random.Random) -> None:
    """Mark the lengths that an engine keeps, and another one."""
    if seq.states is not None:
        marks = prompt_marks(seq.length, len(tokens), seq.states.n_known, SIZE)
        seq.states.marks = {*marks, chance.randrange(len(tokens))}


def check_slots(w: World, running: Sequence[KVSequence]) -> None:
    """Check the tokens of all slots that the tree has, and the number of free slots."""
    slots, states = w.pool.slots, w.tree._states
    if slots is None or states is None:
        return
    used = set[int]()
    for seq in running:
        assert seq.states is not None
        used |= {seq.states.slot, seq.states._read.slot, *seq.states.kept.values()} - {0}
    assert slots.n_free == slots.n_pages - len(used)
    n = 0
    unseen = [(w.tree._root(PLAIN), list[int]())]
    while unseen:
        node, tokens = unseen.pop()
        tokens = [*tokens, *np.frombuffer(node.key, np.int32).tolist()]
        for length, slot in node.states.items():
            assert node.end - len(node.key) // 4 < length <= node.end
            assert w.states[slot] == tokens[:length]
            n += 1
        unseen += [(child, tokens) for child in node.children.values()]
    assert n == len(states)


def longest(tree: PrefixTree, tokens: list[int]) -> int:
    """Return the longest usable prefix of `tokens`, found by a search of the whole tree."""
    return usable(tree, tokens)[1]


def usable(tree: PrefixTree, tokens: list[int]) -> tuple[int, int]:
    """Return the longest usable prefix in whole pages, and the longest of all."""
    aligned = most = 0
    open_paths = [(tree._root(PLAIN), list[Node]())]
    while open_paths:
        node, before = open_paths.pop()
        path = [*before, node] if node.key else before
        known = [int(t) for step in path for t in np.frombuffer(step.key, np.int32)]
        same = [a == b for a, b in zip(known, tokens, strict=False)]
        n = same.index(False) if False in same else len(same)
        found = [i for i in range(n + 1) if is_usable(tree._pool, path, i)]
        most = max(most, *found)
        aligned = max(aligned, *(i for i in found if i % SIZE == 0))
        open_paths += [(child, path) for child in node.children.values()]
    return aligned, most


def is_usable(pool: KVPool, path: list[Node], n: int) -> bool:
    """True if every pool has the pages that length `n` needs, and slots have its state."""
    if pool.slots is not None and n and not any(n in node.states for node in path):
        return False
    return all(
        path[i].pages[g]
        for g, own in enumerate(pool.pools)
        for i in range(pool.first_page(own, n), pool.page_count(n))
    )
