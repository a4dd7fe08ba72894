"""Plans: a split's nodes compiled to a list of kernel calls over fixed addresses.

A plan holds one entry and one block of parameters for each call; running it is one native call.
Knows no backend: `address_of(node, tensor)` says where a tensor lies.
Tested by tests/kernels/test_cpu_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...alloc.host import aligned_empty
from ...base.errors import BackendError
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor
from . import ops as _ops  # noqa: F401 - fills the table
from .jit import Progress, load_all
from .params import ERROR, N_WORDS, WORK, write_params
from .pool import BARRIER, ENTRY_WORDS, FN, LINE, ONE_THREAD, PARAMS_AT, POOL_KERNELS, ThreadPool
from .table import TABLE, Call


class Plan:
    """Kernel calls ready to run. Holds the memory that they use beside the tensors."""

    def __init__(
        self,
        nodes: Sequence[Tensor],
        address_of: Callable[[Tensor, Tensor], int],
        n_threads: int,
        progress: Progress | None = None,
    ) -> None:
        self.calls = [(node, call) for node in nodes for call in calls_of(node)]
        self.n_threads = n_threads
        kernels = [k for _, call in self.calls for k in call.kernels()]
        load_all((*POOL_KERNELS, *kernels), progress)
        shared = max((_lines(c.shared) for _, c in self.calls), default=0)
        work = max((_lines(c.work) for _, c in self.calls), default=0)
        self.work_size = shared + work * n_threads
        self._work = aligned_empty(self.work_size, LINE, "CPU work buffer")
        self._error = np.zeros(1, np.int64)
        self._entries = np.zeros((len(self.calls), ENTRY_WORDS), np.int64)
        self._blocks = np.zeros((len(self.calls), N_WORDS), np.int64)
        for i, (node, call) in enumerate(self.calls):
            block = self._blocks[i]
            write_params(block, node, call.params, address_of)
            at = self._work.ctypes.data
            block[WORK : WORK + 3] = (at, at + shared, work)
            block[ERROR : ERROR + 2] = (self._error.ctypes.data, i + 1)
            alone = i > 0 and call.one_thread and self.calls[i - 1][1].one_thread
            entry = self._entries[i]
            entry[FN] = call.kernel.address
            entry[PARAMS_AT] = block.ctypes.data
            entry[ONE_THREAD] = call.one_thread
            # thread 0 alone did the one before, and does this one: nobody has to wait
            entry[BARRIER] = i > 0 and not alone
        self._address = self._entries.ctypes.data

    def run(self, pool: ThreadPool) -> None:
        """Compute all nodes, on a pool of as many threads as the plan is for.

        Raises:
            BackendError: a kernel met an index outside its tensor.
        """
        assert pool.n_threads == self.n_threads, f"{pool.n_threads} threads, not {self.n_threads}"
        pool.run(self._address, len(self.calls))
        if self._error[0]:
            self._raise_error()

    def _raise_error(self) -> None:
        i = int(self._error[0]) - 1
        self._error[0] = 0
        node, value, limit = self.calls[i][0], *self._blocks[i, ERROR + 2 : ERROR + 4]
        raise BackendError(
            f"{node.op.name.lower()} {node!r}: index {value} must be at least 0 and below {limit}"
        )


def calls_of(node: Tensor) -> Sequence[Call]:
    """The kernel calls that compute a node; none for views, leafs and empty tensors."""
    if node.op in VIEW_OPS or node.op is Op.NONE or node.is_empty:
        return ()
    return TABLE[node.op].calls(node)


def _lines(n: int) -> int:
    # scratch memory of different threads lies in different cache lines
    return -(-n // LINE) * LINE
