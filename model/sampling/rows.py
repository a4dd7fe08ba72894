"""Samples the next tokens of several sequences in one native call.

Each sequence has a chain with its own random numbers. Each row has memory of its own, which the
chain in it borrows: sequences that wait or have ended hold none. So threads divide the rows, and a
token does not depend on other rows. Addresses are written again only if the sequences or the memory
of their logits change: in most steps of an engine neither does. Knows no requests.
Tested by tests/model/test_sampling_rows.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...kernels.cpu.pool import ThreadPool
from ..batch import Mask
from ..outputs import F32Array, Row, Rows, TopLogits, TopRows
from .native import NativeChain, SamplingMemory
from .row_table import RowTable, address_of
from .sampler import Sampler

_FEW_LOGITS: Final = 1 << 16  # of all rows: one thread takes only microseconds

Sampled = int | Exception  # a token, or why there is none
Masks = Sequence[Mask | None]  # of each row; None: all tokens are allowed


class RowSampler:
    """Samples rows of at most `n_max` sequences; on `threads`, if there are many logits."""

    def __init__(self, n_max: int, threads: ThreadPool | None) -> None:
        self._n_max = n_max
        self._threads = threads
        self._table: RowTable | None = None
        self._memories: list[SamplingMemory] = []  # of each row so far
        self._chains: list[NativeChain] = []  # those in the table
        self._changing: list[NativeChain] = []  # those of them with parameters for each token
        self._matrix: tuple[int, ...] | None = None  # of the logits in the table, see `_matrix_of`
        self._is_masked = False  # a chain in the table has a mask

    def sample(
        self, samplers: Sequence[Sampler], rows: Rows, masks: Masks | None = None
    ) -> Sequence[Sampled]:
        """Return a token for each row as `Sampler.sample` does, or what that would raise.

        Args:
            samplers: the sampler of each row, all different.
            rows: their logits; see `Sampler.sample`.
            masks: their masks; None: none.
        """
        chains = [chain for each in samplers if isinstance(chain := each.chain, NativeChain)]
        if len(chains) < len(samplers):  # with LAMELLA_NO_JIT
            each = [None] * len(samplers) if masks is None else masks
            return [_sampled(*row) for row in zip(samplers, rows, each, strict=True)]
        if not chains:
            return []
        table = self._write(chains, rows)
        if masks is not None or self._is_masked:
            self._allow(rows, masks)
        failed = self._prepare()
        tokens = self._run(table, rows)
        for chain in self._changing:
            chain.after()
        if min(tokens) >= 0 and not failed:
            return tokens
        return [
            failed.get(chain) or (token if token >= 0 else chain.error(_logits(row)))
            for token, chain, row in zip(tokens, chains, rows, strict=True)
        ]

    def _prepare(self) -> dict[NativeChain, Exception]:
        """Prepare the chains that change. Return those that failed, which draw nevertheless."""
        failed = {}
        for chain in self._changing:
            try:
                chain.before()
            except Exception as e:
                failed[chain] = e
        return failed

    def _write(self, chains: list[NativeChain], rows: Rows) -> RowTable:
        """Write chains and rows, unless the table has them already."""
        table = self._table = self._table or RowTable(self._n_max)
        matrix = _matrix_of(rows)
        if matrix is not None and matrix == self._matrix and chains == self._chains:
            return table
        for chain in self._chains:
            chain.allow(None)
        self._chains, self._matrix = chains, matrix
        self._changing = [chain for chain in chains if chain.changes]
        while len(self._memories) < len(chains):
            self._memories.append(SamplingMemory(chains[0].n_vocab))
        for chain, memory in zip(chains, self._memories, strict=False):
            chain.use(memory)
        if isinstance(rows, TopRows):
            table.write_all([chain.address for chain in chains], rows)
            return table
        for i, (chain, row) in enumerate(zip(chains, rows, strict=True)):
            if isinstance(row, TopLogits):
                table.write(i, chain.address, row.logits, row.ids)
            else:
                table.write(i, chain.address, row)
        return table

    def _allow(self, rows: Rows, masks: Masks | None) -> None:
        """Set the masks of the chains. Largest logits were chosen among the allowed tokens."""
        self._is_masked = masks is not None
        each = [None] * len(self._chains) if masks is None else masks
        for chain, row, mask in zip(self._chains, rows, each, strict=True):
            chain.allow(None if isinstance(row, TopLogits) else mask)

    def _run(self, table: RowTable, rows: Rows) -> list[int]:
        n, threads = len(self._chains), self._threads
        n_logits = sum(len(_logits(row)) for row in rows) if self._matrix is None else _size(rows)
        if n > 1 and n_logits > _FEW_LOGITS and threads is not None:
            return table.run_on(threads, n)
        is_short = n == 1 or n_logits <= _FEW_LOGITS
        is_short = is_short and all(chain.is_short for chain in self._chains)
        return table.run(n, keeps_interpreter=is_short)


def _sampled(sampler: Sampler, row: Row, mask: Mask | None) -> Sampled:
    try:
        return sampler.sample(row, mask)
    except Exception as e:
        return e


def _logits(row: Row) -> F32Array:
    return row.logits if isinstance(row, TopLogits) else row


def _matrix_of(rows: Rows) -> tuple[int, ...] | None:
    """What the addresses of rows follow from; None if they are apart."""
    if isinstance(rows, TopRows):
        return address_of(rows.logits), address_of(rows.ids), *rows.logits.strides
    return (address_of(rows), *rows.strides) if isinstance(rows, np.ndarray) else None


def _size(rows: Rows) -> int:
    assert not isinstance(rows, list), "rows are apart"
    return rows.logits.size if isinstance(rows, TopRows) else rows.size
