"""Batches: the tokens of one step, cut into ubatches.

A `Batch` holds tokens of one or several sequences. A `UBatch` is the part of a batch that one graph
computes. Knows no graphs and no tensors. Tested by tests/model/test_batch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .kv_sequence import KVSequence

I32Array = npt.NDArray[np.int32]
F32Array = npt.NDArray[np.float32]
Mask: TypeAlias = npt.NDArray[np.uint32]  # bit i % 32 of word i // 32: token i is allowed
LateMask: TypeAlias = Callable[[], Mask]  # waits for the mask and returns it, the same each time


class Batch:
    """Tokens to decode, each at a position that its sequence has reserved.

    Tokens of one sequence are in order of position. Runs of several sequences may be mixed.
    """

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.n_tokens = 0
        self.n_outputs = 0

    def add(
        self,
        tokens: list[int],
        seq: KVSequence,
        pos: int,
        n_outputs: int = 0,
        n_top: int = 0,
        masks: Sequence[LateMask] = (),
        lora_scales: F32Array | None = None,
        hidden: F32Array | None = None,
    ) -> None:
        """Add consecutive tokens of a sequence, the first at `pos`.

        The logits of the last `n_outputs` tokens are outputs. Each output needs its `n_top` largest
        logits, or all if `n_top` is 0. With `masks`, one for each output, it needs the largest of
        the allowed tokens. `lora_scales` are of the sequence's adapters, see `Adapters.scales`.
        `hidden` are the hidden states [n, n_embd] that a `NextN` reads.
        """
        end = pos + len(tokens)
        assert 0 <= n_outputs <= len(tokens), f"{n_outputs} outputs of {len(tokens)} tokens"
        assert tokens and end <= seq.length, f"positions {pos}..{end} of {seq.length} reserved"
        assert len(masks) in (0, n_outputs), f"{len(masks)} masks of {n_outputs} outputs"
        run = Run(tokens, seq, pos, n_outputs, n_top, masks, lora_scales, hidden=hidden)
        self.runs.append(run)
        self.n_tokens += len(tokens)
        self.n_outputs += n_outputs

    def __len__(self) -> int:
        return self.n_tokens


@dataclass(slots=True)
class Run:
    """Consecutive tokens of one sequence; see `Batch.add`."""

    tokens: list[int]
    seq: KVSequence
    pos: int
    n_outputs: int
    n_top: int = 0
    masks: Sequence[LateMask] = ()
    lora_scales: F32Array | None = None
    slots: I32Array | None = None  # [n, 2], see `SequenceStates.run`
    hidden: F32Array | None = None

    @property
    def all_masks(self) -> Sequence[LateMask | None]:
        """The mask of each output; None if all tokens are allowed."""
        return self.masks or (None,) * self.n_outputs

    def cut(self, n: int) -> tuple[Run, Run]:
        """Return the first `n` tokens and the rest, as two runs."""
        rest = min(self.n_outputs, len(self.tokens) - n)
        first = self.n_outputs - rest
        tokens, masks = self.tokens, self.masks
        begin, end = (None, None) if self.hidden is None else (self.hidden[:n], self.hidden[n:])
        return (
            replace(self, tokens=tokens[:n], n_outputs=first, masks=masks[:first], hidden=begin),
            replace(
                self,
                tokens=tokens[n:],
                pos=self.pos + n,
                n_outputs=rest,
                masks=masks[first:],
                hidden=end,
            ),
        )


@dataclass(slots=True)
class UBatch:
    """The tokens that one graph computes: runs of at most n_ubatch tokens in total."""

    runs: list[Run]
    n_tokens: int
    n_outputs: int
    seqs: dict[KVSequence, int]  # the distinct sequences, each with its row of the page table

    @property
    def n_tops(self) -> list[int]:
        """For each output, the number of largest logits it needs; 0 for all."""
        return [n for run in self.runs for n in (run.n_top,) * run.n_outputs]

    @property
    def is_adapted(self) -> bool:
        """True if a sequence has LoRA adapters."""
        return any(run.lora_scales is not None for run in self.runs)

    @property
    def masks(self) -> list[LateMask | None]:
        """For each output, its mask; None if all tokens are allowed."""
        return [mask for run in self.runs for mask in run.all_masks]

    def has_masks(self, n_top: int) -> bool:
        """True if a mask limits an output that needs `n_top` logits or fewer, but not all."""
        limited = [run.n_top for run in self.runs if run.masks]  # mostly none
        return bool(limited) and any(0 < n <= n_top for n in limited)


def cut_batch(batch: Batch, n_ubatch: int, n_seq_max: int) -> Iterable[UBatch]:
    """Cut a batch into ubatches of at most `n_ubatch` tokens of at most `n_seq_max` sequences."""
    if 0 < batch.n_tokens <= n_ubatch and len(batch.runs) <= n_seq_max:  # as in most steps
        return (UBatch(batch.runs, batch.n_tokens, batch.n_outputs, _rows_of(batch.runs)),)
    return _cut(batch, n_ubatch, n_seq_max)


def _cut(batch: Batch, n_ubatch: int, n_seq_max: int) -> Iterator[UBatch]:
    rest = list(reversed(batch.runs))
    while rest:
        ubatch = UBatch([], 0, 0, {})
        seqs = ubatch.seqs
        while rest and ubatch.n_tokens < n_ubatch:
            run = rest[-1]
            if run.seq not in seqs and len(seqs) == n_seq_max:
                break
            rest.pop()
            room = n_ubatch - ubatch.n_tokens
            if len(run.tokens) > room:
                run, later = run.cut(room)
                rest.append(later)
            ubatch.runs.append(run)
            ubatch.n_tokens += len(run.tokens)
            ubatch.n_outputs += run.n_outputs
            seqs.setdefault(run.seq, len(seqs))
        yield ubatch


def _rows_of(runs: Sequence[Run]) -> dict[KVSequence, int]:
    """The distinct sequences of runs, each with its row of the page table."""
    if len(runs) == 1:
        return {runs[0].seq: 0}
    seqs: dict[KVSequence, int] = {}
    for run in runs:
        seqs.setdefault(run.seq, len(seqs))
    return seqs
