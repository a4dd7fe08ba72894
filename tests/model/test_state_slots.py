"""Slots of states: which slot a token reads and writes, what is kept, and random lives."""

from __future__ import annotations

import random

import pytest

from lamella.base.errors import OutOfMemoryError, RequestError
from lamella.model.kv_sequence import KVPool, KVSequence
from lamella.model.state_slots import NO_SLOT, SequenceStates, SlotPool, SlotRef


def test_a_sequence_reads_zeros_and_then_its_own_slot() -> None:
    states = SequenceStates(SlotPool(2))
    assert states.run(0, 3).tolist() == [[NO_SLOT, 1], [1, 1], [1, 1]]
    assert states.run(3, 4).tolist() == [[1, 1]]
    assert (states.length, states.slot) == (4, 1)


def test_tokens_must_follow_the_states() -> None:
    states = SequenceStates(SlotPool(1))
    states.run(0, 3)
    with pytest.raises(RequestError, match="position 2 of a sequence with the states of 3 tokens"):
        states.run(2, 4)


def test_a_shared_slot_is_read_and_another_one_written() -> None:
    pool = SlotPool(2)
    first, second = SequenceStates(pool), SequenceStates(pool)
    first.run(0, 3)
    second.share(first.at(3))
    assert second.run(3, 5).tolist() == [[1, 2], [2, 2]]
    assert first.run(3, 4).tolist() == [[1, 3]]  # the second may still read slot 1
    second.run(5, 6)
    assert first.run(4, 5).tolist() == [[3, 3]]
    assert pool.n_free == 2  # both have one slot


def test_a_run_can_be_taken_back() -> None:
    pool = SlotPool(1)
    states = SequenceStates(pool)
    states.run(0, 3)
    assert states.run(3, 4, can_go_back=True).tolist() == [[1, 2]]
    assert states.run(4, 5, can_go_back=True).tolist() == [[2, 1]]
    states.truncate(4)
    assert (states.length, states.slot) == (4, 2)
    assert states.run(4, 5).tolist() == [[2, 2]]
    with pytest.raises(RequestError, match="length 4 of a sequence with the states of 5"):
        states.truncate(4)
    states.run(5, 6, can_go_back=True)
    states.run(6, 7)
    with pytest.raises(RequestError, match="length 5"):
        states.truncate(5)
    states.truncate(0)
    assert pool.n_free == pool.n_pages


def test_marked_lengths_are_kept_within_a_run() -> None:
    pool = SlotPool(1, n_kept=2)
    states = SequenceStates(pool)
    states.marks = frozenset({2, 3, 5, 6})
    assert states.run(0, 4).tolist() == [[NO_SLOT, 1], [1, 1], [1, 2], [2, 3]]
    assert states.kept == {2: 1, 3: 2}
    assert states.run(4, 6).tolist() == [[3, 3], [3, 3]]  # no more are kept
    assert states.take_kept(2) == [(2, 1)]
    pool.drop(1)
    states.truncate(3)
    assert (states.length, states.slot, states.kept) == (3, 2, {3: 2})
    assert states.run(3, 4).tolist() == [[2, 3]]  # slot 2 is kept


def test_of_many_marks_the_first_ones_are_kept() -> None:
    pool = SlotPool(1, n_kept=2)
    states = SequenceStates(pool)
    states.marks = (6, 9, 7, 2)
    assert states.run(0, 8).tolist()[5:] == [[1, 1], [1, 2], [2, 3]]
    assert states.kept == {6: 1, 7: 2}
    states.truncate(0)
    assert pool.n_keepable == 2 and pool.n_free == pool.n_pages


def test_a_state_that_is_not_kept_is_refused() -> None:
    pool = KVPool(64, slots=SlotPool(2), page_size=4)
    seq = pool.new_sequence()
    seq.append(9)
    states = seq.states
    assert states is not None
    states.run(0, 7)
    for call in (seq.fork, seq.truncate):
        with pytest.raises(RequestError, match=r"length 6 .* states of 7 tokens: .* not kept"):
            call(6)
    seq.truncate(8)  # no token is there yet
    fork = seq.fork()
    assert fork.states is not None
    assert (fork.length, fork.states.length) == (8, 7)
    seq.truncate(0)
    assert (states.length, states.slot) == (0, 0)
    for each in (seq, fork):
        each.free()
    assert pool.slots is not None
    assert pool.slots.n_free == pool.slots.n_pages


def test_more_sequences_than_the_pool_is_made_for() -> None:
    pool = SlotPool(1)
    sequences = [SequenceStates(pool) for _ in range(3)]
    for states in sequences[:2]:
        states.run(0, 1)
    with pytest.raises(OutOfMemoryError, match="the slots of states"):
        sequences[2].run(0, 1)


def test_guesses_can_be_taken_back() -> None:
    pool = KVPool(64, slots=SlotPool(1, n_kept=2), page_size=4)
    assert pool.slots is not None
    seq = pool.new_sequence()
    assert seq.states is not None
    seq.append(4)
    seq.states.marks = frozenset({3})
    seq.states.run(0, 4)
    seq.append(1)
    assert seq.advance_idle(3) == 1  # one slot is left
    assert seq.states.run(4, 6).tolist() == [[2, 2], [2, 3]]
    assert pool.slots.n_keepable == 0
    seq.take_back(5)
    assert (seq.length, seq.states.length, seq.states.kept) == (5, 5, {3: 1})
    assert pool.slots.n_keepable == 1
    seq.append(1)
    assert seq.advance_idle(1) == 1
    seq.states.run(5, 7)
    seq.take_back(7)  # the guess came true
    assert (seq.length, seq.states.length, seq.states.kept) == (7, 7, {3: 1})
    seq.append(1)
    assert seq.advance_idle(1) == 1
    seq.free()  # in the middle of a step that failed
    assert pool.slots.n_keepable == 2
    assert pool.slots.n_free == pool.slots.n_pages


class Lives:
    """Sequences whose slots hold the tokens themselves, as a model's slots hold their states."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.n_seqs = self.chance.randint(1, 4)
        self.slots = SlotPool(self.n_seqs, self.chance.choice([0, 1, 5]))
        self.slots.evict = self.evict
        self.pool = KVPool(1000, slots=self.slots, page_size=4, n_seqs=self.n_seqs)
        self.contents = dict[int, list[int]]()
        self.cached = dict[int, list[int]]()  # the slots that a cache has, with their tokens
        self.live: list[tuple[KVSequence, list[int]]] = []
        self.back = dict[KVSequence, int]()  # lengths that sequences can go back to
        self.n_written = 0

    def evict(self, n: int) -> None:
        idle = [slot for slot in self.cached if self.slots.is_evictable(slot)]
        for slot in idle[:n]:
            del self.cached[slot]
            self.slots.uncache(slot)

    def step(self) -> None:
        action = self.chance.choice([self.new, self.fork, self.compute, self.compute, self.cache])
        action = self.chance.choice([action, action, self.truncate, self.free, self.begin_cached])
        if self.live or action in (self.new, self.begin_cached):
            action()
        self.check()

    def new(self) -> None:
        if len(self.live) < self.n_seqs:
            seq = self.pool.new_sequence()
            states_of(seq).rolls = self.chance.choice([range(0), range(8, 1000, 4)])
            self.live.append((seq, []))

    def begin_cached(self) -> None:
        if len(self.live) < self.n_seqs and self.cached:
            slot, tokens = self.chance.choice([*self.cached.items()])
            seq = self.pool.new_sequence()
            states_of(seq).share(SlotRef(len(tokens), slot))
            self.live.append((seq, list(tokens)))

    def compute(self) -> None:
        """A ubatch of several sequences, which may have several runs each."""
        runs = []
        for _ in range(self.chance.randint(1, 4)):
            seq, tokens = self.chance.choice(self.live)
            states, n = states_of(seq), self.chance.randint(1, 6)
            begin = len(tokens)
            states.marks = frozenset(self.chance.sample(range(begin, begin + n + 1), 1 + n // 3))
            tokens += range(self.n_written, self.n_written + n)
            self.n_written += n
            can_go_back = self.chance.random() < 0.5
            slots = states.run(begin, begin + n, can_go_back=can_go_back)
            self.back[seq] = begin if can_go_back else len(tokens)
            runs.append((slots, tokens[begin:]))
        for rows, tokens in runs:
            for (src, dst), token in zip(rows.tolist(), tokens, strict=True):
                before = [] if src == NO_SLOT else self.contents[src]
                self.contents[dst] = [*before, token]

    def cache(self) -> None:
        seq, tokens = self.chance.choice(self.live)
        for length, slot in states_of(seq).take_kept(len(tokens)):
            if slot not in self.cached:
                self.slots.cache(slot)
                self.cached[slot] = tokens[:length]
            self.slots.drop(slot)

    def fork(self) -> None:
        seq, tokens = self.chance.choice(self.live)
        n = self.chance.choice([len(tokens), *self.kept(seq)])
        if len(self.live) < self.n_seqs:
            fork = KVSequence(self.pool)
            states_of(fork).share(states_of(seq).at(n))
            self.live.append((fork, tokens[:n]))

    def truncate(self) -> None:
        seq, tokens = self.chance.choice(self.live)
        n = self.chance.choice([0, len(tokens), *self.kept(seq)])
        states_of(seq).truncate(n)
        self.back.pop(seq, None)
        del tokens[n:]

    def kept(self, seq: KVSequence) -> list[int]:
        return [*states_of(seq).kept, *([self.back[seq]] if seq in self.back else [])]

    def free(self) -> None:
        seq, _ = self.live.pop(self.chance.randrange(len(self.live)))
        self.back.pop(seq, None)
        seq.free()

    def check(self) -> None:
        for seq, tokens in self.live:
            states = states_of(seq)
            assert states.length == len(tokens)
            assert (self.contents[states.slot] if states.slot else []) == tokens
            for length, slot in states.kept.items():
                assert self.contents[slot] == tokens[:length]
        for slot, wanted in self.cached.items():
            assert self.contents[slot] == wanted


def test_the_latest_page_end_of_a_generation_is_kept() -> None:
    pool = SlotPool(1, 5)
    states = SequenceStates(pool)
    states.rolls = range(8, 100, 4)
    for n in range(14):
        states.run(n, n + 1)
        assert set(states.kept) == ({(n + 1) // 4 * 4} if n >= 7 else set())
    assert pool.n_keepable == 4
    # of guesses that came true
    states.guess(14, 4)
    states.run(14, 18)
    states.truncate(17)
    assert set(states.kept) == {16} and pool.n_keepable == 4
    # and of others
    states.guess(17, 3)
    states.run(17, 20)
    states.truncate(18)
    assert set(states.kept) == {16} and pool.n_keepable == 4
    (kept,) = states.take_kept(18)
    assert kept.length == 16 and pool.n_keepable == 5
    pool.drop(kept.slot)
    states.truncate(0)
    assert pool.n_free == pool.n_pages


@pytest.mark.parametrize(("n_each", "kept"), [(1, [8]), (2, [7, 8])])
def test_a_generation_leaves_slots_for_the_prompts_of_others(n_each: int, kept: list[int]) -> None:
    pool = SlotPool(2, 2 * n_each)
    first, second = SequenceStates(pool), SequenceStates(pool)
    for states in (first, second):
        states.marks, states.rolls = frozenset({7}), range(8, 100, 4)
    for n in range(10):
        first.run(n, n + 1)
    assert sorted(first.kept) == kept
    second.run(0, 9)
    assert 7 in second.kept  # the prompt
    for states in (first, second):
        for length in range(states.length, 30):
            states.run(length, length + 1)
        states.guess(30, min(4, pool.n_keepable))
        states.run(30, 31)
        states.truncate(31)
        states.truncate(0)
    assert pool.n_keepable == 2 * n_each and pool.n_free == pool.n_pages


def test_without_slots_no_page_end_is_kept() -> None:
    states = SequenceStates(SlotPool(1, 0))
    states.rolls = range(4, 100, 4)
    for n in range(9):
        states.run(n, n + 1)
    assert not states.kept


def states_of(seq: KVSequence) -> SequenceStates:
    assert seq.states is not None
    return seq.states


@pytest.mark.parametrize("seed", range(30))
def test_random_lives_keep_every_state(seed: int) -> None:
    lives = Lives(seed)
    for _ in range(300):
        lives.step()
    for seq, _ in lives.live:
        seq.free()
    assert lives.slots.n_free == lives.slots.n_pages
    lives.evict(1000)
    assert lives.slots.take(lives.slots.n_pages)
