"""Batches: the tokens of one step, of one or several sequences, and their cutting into ubatches.

A `Batch` is what a caller wants decoded; a `UBatch` is what one graph computes, as flat arrays.
Knows no graphs and no tensors. Tested by tests/model/test_batch.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .kv_pages import KVSequence

I32Array = npt.NDArray[np.int32]


class Batch:
    """Tokens to decode, each at a position that its sequence has reserved.

    Tokens of one sequence come in order of position; those of several may be mixed.
    """

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.n_tokens = 0
        self.n_outputs = 0

    def add(
        self, tokens: list[int], seq: KVSequence, pos: int, n_outputs: int = 0, n_top: int = 0
    ) -> None:
        """Add consecutive tokens of a sequence, the first at `pos`; the logits of the last
        `n_outputs` of them are wanted: the `n_top` largest are enough, or 0: all."""
        end = pos + len(tokens)
        assert 0 <= n_outputs <= len(tokens), f"{n_outputs} outputs of {len(tokens)} tokens"
        assert tokens and end <= seq.length, f"positions {pos}..{end} of {seq.length} reserved"
        self.runs.append(Run(tokens, seq, pos, n_outputs, n_top))
        self.n_tokens += len(tokens)
        self.n_outputs += n_outputs

    def __len__(self) -> int:
        return self.n_tokens


@dataclass(slots=True)
class Run:
    """Consecutive tokens of one sequence; the logits of the last `n_outputs` are wanted, of each
    the `n_top` largest or, if that is 0, all."""

    tokens: list[int]
    seq: KVSequence
    pos: int
    n_outputs: int
    n_top: int = 0

    def cut(self, n: int) -> tuple[Run, Run]:
        """The first `n` tokens, and the rest."""
        rest = min(self.n_outputs, len(self.tokens) - n)
        return (
            Run(self.tokens[:n], self.seq, self.pos, self.n_outputs - rest, self.n_top),
            Run(self.tokens[n:], self.seq, self.pos + n, rest, self.n_top),
        )


@dataclass(slots=True)
class UBatch:
    """What one graph computes: runs of at most n_ubatch tokens together."""

    runs: list[Run]
    n_tokens: int
    n_outputs: int
    seqs: list[KVSequence]  # the sequences, each once; rows of the page table

    @property
    def n_tops(self) -> list[int]:
        """Of each output: how many of the largest logits are enough, or 0 if all are wanted."""
        return [run.n_top for run in self.runs for _ in range(run.n_outputs)]


def cut_batch(batch: Batch, n_ubatch: int, n_seq_max: int) -> Iterator[UBatch]:
    """Cut a batch into ubatches of at most `n_ubatch` tokens of at most `n_seq_max` sequences."""
    rest = list(reversed(batch.runs))
    while rest:
        ubatch = UBatch([], 0, 0, [])
        while rest and ubatch.n_tokens < n_ubatch:
            run = rest[-1]
            known = any(run.seq is seq for seq in ubatch.seqs)
            if not known and len(ubatch.seqs) == n_seq_max:
                break
            rest.pop()
            room = n_ubatch - ubatch.n_tokens
            if len(run.tokens) > room:
                run, later = run.cut(room)
                rest.append(later)
            ubatch.runs.append(run)
            ubatch.n_tokens += len(run.tokens)
            ubatch.n_outputs += run.n_outputs
            if not known:
                ubatch.seqs.append(run.seq)
        yield ubatch
