"""Which kernels compute which op: the table that `supports_op` and plans are made from.

Each module of `ops/` adds its ops with `implements`. Knows no memory and no threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ...graph.op import Op
from ...graph.tensor import Tensor
from .jit import Kernel
from .params import Param

SMALL: Final = 16384  # elements below which a second thread costs more than it gains


class Call(NamedTuple):
    """One call of a kernel for a node.

    `params` are the op's: int64, float64, or a kernel that `kernel` calls. `one_thread`: too
    small to share. Scratch memory in bytes: `work` for each thread, `shared` for all threads and
    all calls of the node.
    """

    kernel: Kernel
    params: Sequence[Param] = ()
    one_thread: bool = False
    work: int = 0
    shared: int = 0

    def kernels(self) -> list[Kernel]:
        """All that must be loaded."""
        return [self.kernel, *(p for p in self.params if isinstance(p, Kernel))]


class Implementation(NamedTuple):
    """How an op is computed: whether a node is supported, and the calls that compute it."""

    supports: Callable[[Tensor], bool]
    calls: Callable[[Tensor], Sequence[Call]]


TABLE: Final[dict[Op, Implementation]] = {}


def implements(
    *ops: Op, supports: Callable[[Tensor], bool] = lambda node: True
) -> Callable[[Callable[[Tensor], Sequence[Call]]], Callable[[Tensor], Sequence[Call]]]:
    """Declare a function from a node to its calls as the implementation of `ops`."""

    def declare(calls: Callable[[Tensor], Sequence[Call]]) -> Callable[[Tensor], Sequence[Call]]:
        for op in ops:
            assert op not in TABLE, f"{op.name} is implemented twice"
            TABLE[op] = Implementation(supports, calls)
        return calls

    return declare
