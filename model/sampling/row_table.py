"""The parameters of the kernel that samples rows: the chain of each row, and its logits.

Knows addresses only. Tested by tests/model/test_sampling_rows.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...kernels.cpu import sampling as kernels
from ...kernels.cpu.pool import ThreadPool, entry_of
from ...kernels.cpu.sampling import draw
from ..outputs import F32Array, I32Array, TopRows


class RowTable:
    """Rows to sample, at most `n_max`."""

    def __init__(self, n_max: int) -> None:
        """Raise BackendError if the kernel cannot be compiled."""
        self._words = np.zeros(draw.ROWS + n_max * draw.ROW_WORDS, np.int64)
        self._head = self._words.data  # faster than an array for one number
        self._rows = self._words[draw.ROWS :].reshape(n_max, draw.ROW_WORDS)
        self._results = self._rows[:, draw.RESULT]
        self._address = address_of(self._words)
        self._entry = entry_of(kernels.sample_rows, self._address)
        self._entry_address = address_of(self._entry)

    def write(self, i: int, chain: int, logits: F32Array, ids: I32Array | None = None) -> None:
        """Write row `i`: the address of its chain's block, its logits [n] and their tokens [n];
        without `ids`, the logits are those of the whole vocabulary. They must live until `run`."""
        assert logits.flags.c_contiguous, logits.strides
        assert ids is None or ids.flags.c_contiguous, ids.strides
        at = 0 if ids is None else address_of(ids)
        self._rows[i, : draw.RESULT] = chain, address_of(logits), at, len(logits)

    def write_all(self, chains: Sequence[int], rows: TopRows) -> None:
        """Write a row for each of `chains`; see `write`."""
        n, ids, logits = len(chains), rows.ids, rows.logits
        assert ids.flags.c_contiguous, ids.strides
        assert logits.flags.c_contiguous, logits.strides
        table = self._rows[:n]
        table[:, draw.BLOCK] = chains
        table[:, draw.ROW_LOGITS] = address_of(logits) + logits.strides[0] * np.arange(n)
        table[:, draw.ROW_IDS] = address_of(ids) + ids.strides[0] * np.arange(n)
        table[:, draw.ROW_N] = logits.shape[1]

    def run(self, n: int, *, keeps_interpreter: bool) -> list[int]:
        """Sample the first `n` rows on this thread. Return a token for each, or -1 - status."""
        self._begin(n)
        native_call(keeps_interpreter)(self._address, 0, 1)
        return self._taken(n)

    def run_on(self, threads: ThreadPool, n: int) -> list[int]:
        """As `run`, on all threads and without the interpreter lock."""
        self._begin(n)
        threads.run(self._entry_address, 1, min(n, threads.n_threads))
        return self._taken(n)

    def _begin(self, n: int) -> None:
        self._head[draw.NEXT] = 0
        self._head[draw.N_ROWS] = n

    def _taken(self, n: int) -> list[int]:
        found: list[int] = self._results[:n].tolist()
        return found


@cache
def native_call(keeps_interpreter: bool) -> Callable[[int, int, int], None]:
    """Return the kernel as a function that holds the interpreter lock, or releases it.

    A short call holds it: another thread could take the lock for 5 ms (sys.getswitchinterval). A
    long call releases it, so that a server's other threads can run.
    """
    make = ctypes.PYFUNCTYPE if keeps_interpreter else ctypes.CFUNCTYPE
    return make(None, *[ctypes.c_int64] * 3)(kernels.sample_rows.address)


def address_of(array: npt.NDArray[Any]) -> int:
    address: int = array.ctypes.data
    return address
