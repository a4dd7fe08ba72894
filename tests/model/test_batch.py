"""Batches are cut into ubatches without a change of tokens, outputs or their order."""

from __future__ import annotations

import random

from lamella.model.batch import Batch, cut_batch
from lamella.model.kv_sequence import KVPool, KVSequence


def sequences(n: int, length: int) -> list[KVSequence]:
    pool = KVPool(n * (length + 32))
    seqs = [pool.new_sequence() for _ in range(n)]
    for seq in seqs:
        seq.append(length)
    return seqs


def test_a_long_prompt_is_cut_and_only_its_last_token_gives_logits() -> None:
    (seq,) = sequences(1, 1000)
    batch = Batch()
    batch.add(list(range(1000)), seq, 0, n_outputs=1)
    ubatches = list(cut_batch(batch, 512, 4))
    assert [(u.n_tokens, u.n_outputs, len(u.seqs)) for u in ubatches] == [(512, 0, 1), (488, 1, 1)]
    assert [u.runs[0].pos for u in ubatches] == [0, 512]


def test_too_many_sequences_wait_for_the_next_ubatch() -> None:
    batch = Batch()
    for seq in sequences(5, 4):
        batch.add([1], seq, 3, n_outputs=1)
    assert [(u.n_tokens, len(u.seqs)) for u in cut_batch(batch, 64, 2)] == [(2, 2), (2, 2), (1, 1)]


def test_random_batches_keep_tokens_and_outputs_in_order() -> None:
    rng = random.Random(1)
    for _ in range(200):
        batch, expected = Batch(), []
        for seq in sequences(rng.randint(1, 6), 60):
            pos = 0
            while pos < 60 and rng.random() < 0.8:
                n = rng.randint(1, 60 - pos)
                n_outputs = rng.randint(0, n)
                tokens = [rng.randrange(100) for _ in range(n)]
                batch.add(tokens, seq, pos, n_outputs)
                expected += [(t, seq, pos + i, i >= n - n_outputs) for i, t in enumerate(tokens)]
                pos += n
        n_ubatch, n_seq_max = rng.choice((1, 2, 7, 32, 512)), rng.randint(1, 4)
        got = []
        for u in cut_batch(batch, n_ubatch, n_seq_max):
            assert 0 < u.n_tokens <= n_ubatch
            assert u.n_tokens == sum(len(run.tokens) for run in u.runs)
            assert u.n_outputs == sum(run.n_outputs for run in u.runs)
            assert {id(run.seq) for run in u.runs} == {id(seq) for seq in u.seqs}
            assert len(u.seqs) <= n_seq_max
            for run in u.runs:
                n = len(run.tokens)
                got += [
                    (t, run.seq, run.pos + i, i >= n - run.n_outputs)
                    for i, t in enumerate(run.tokens)
                ]
        assert got == expected
        assert len(batch) == len(got)
        assert batch.n_outputs == sum(wanted for *_, wanted in got)
