"""Which kernels compute which op: the tables that `supports_op` and plans are made from.

Each module of `ops/` adds its ops with `implements`. A node that reads repacked weights has kernels
of its own, in a table beside. Knows no memory and no threads. Tested by
tests/kernels/test_cpu_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

from ...graph.op import Op
from ...graph.tensor import Tensor
from ..plan.fusion import Fusers
from .compiler.jit import Kernel
from .params import Param

SMALL: Final = 16384  # elements below which a second thread costs more than it gains


class Prepared(NamedTuple):
    """A source of a node brought into another form in scratch memory, for all who want it so.

    `tensor` is the source, `form` says which form (two of the same tensor and form hold the same
    bytes), `size` its bytes. `calls` make it: each finds the place with `params.prepared(p, 0)`,
    its tensors are those of the call that wants it, of which it may read nothing but `tensor`.
    """

    tensor: Tensor
    form: Hashable
    size: int
    calls: Sequence[Call]


class Call(NamedTuple):
    """One call of a kernel for a node.

    `params` are the op's: int64, float64, or a kernel that `kernel` calls. `one_thread`: too
    small to share. Scratch memory in bytes: `work` for each thread, `shared` for all threads and
    all calls of the node. `prepared` are the sources that it reads in another form:
    `params.prepared(p, i)` is where the i-th lies.

    `tensors` are what the block of parameters holds, those that are written first: the node and
    its sources unless they are given.
    """

    kernel: Kernel
    params: Sequence[Param] = ()
    one_thread: bool = False
    work: int = 0
    shared: int = 0
    prepared: Sequence[Prepared] = ()
    tensors: Sequence[Tensor] = ()
    n_written: int = 1

    def kernels(self) -> list[Kernel]:
        """All that must be loaded."""
        before = [k for made in self.prepared for call in made.calls for k in call.kernels()]
        return [*before, self.kernel, *(p for p in self.params if isinstance(p, Kernel))]


class Implementation(NamedTuple):
    """How an op is computed: whether a node is supported, and the calls that compute it."""

    supports: Callable[[Tensor], bool]
    calls: Callable[[Tensor], Sequence[Call]]


TABLE: Final[dict[Op, Implementation]] = {}  # of tensors as ggml lays them out
PACKED: Final[dict[Op, Implementation]] = {}  # of nodes that read repacked weights


FUSERS: Final = Fusers[Call]()
fuses = FUSERS.fuses


def implements(
    *ops: Op, supports: Callable[[Tensor], bool] = lambda node: True, packed: bool = False
) -> Callable[[Callable[[Tensor], Sequence[Call]]], Callable[[Tensor], Sequence[Call]]]:
    """Declare a function from a node to its calls as the implementation of `ops`.

    `packed`: of nodes that read repacked weights, not of others.
    """
    table = PACKED if packed else TABLE

    def declare(calls: Callable[[Tensor], Sequence[Call]]) -> Callable[[Tensor], Sequence[Call]]:
        for op in ops:
            assert op not in table, f"{op.name} is implemented twice"
            table[op] = Implementation(supports, calls)
        return calls

    return declare


def is_packed(tensor: Tensor) -> bool:
    """True if the tensor lies in a buffer of repacked weights."""
    buft = getattr(tensor.root.buffer, "buft", None)  # none yet, or memory without a type
    return bool(getattr(buft, "is_packed", False))


def find(node: Tensor) -> Implementation | None:
    """The implementation for a node's op where its sources lie; None if there is none.

    Whether it supports the node's types and layouts is for the caller to ask.
    """
    table = PACKED if any(map(is_packed, node.src)) else TABLE
    return table.get(node.op)
