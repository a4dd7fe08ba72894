"""Which CUDA kernels compute which op: the table that `supports_op` and plans are made from.

Each module of `ops/` adds its ops with `implements`, and its fused chains with `fuses`. Knows no
memory, no driver and no compiler. Tested by tests/kernels/test_cuda_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...graph.op import Op
from ...graph.tensor import Tensor
from ..plan.fusion import Fusers
from .params import Param

Define = str | int


@dataclass(frozen=True, slots=True)
class Source:
    """A file of `src/` compiled with some definitions: what is compiled, cached and loaded at once.

    `defines` are (name, value): types and sizes that a kernel must know when it is compiled.
    """

    file: str
    defines: tuple[tuple[str, Define], ...] = ()

    @classmethod
    def of(cls, file: str, **defines: Define) -> Source:
        return cls(file, tuple(sorted(defines.items())))

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.defines)
        return f"{self.file}[{values}]" if values else self.file


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: the source it is in and its name there."""

    source: Source
    name: str

    def __str__(self) -> str:
        return f"{self.name} of {self.source}"


Dim3 = tuple[int, int, int]


class Prepared(NamedTuple):
    """A source of a node brought into another form in scratch memory, for all who want it so.

    `tensor` is the source, `form` says which form (two of the same tensor and form hold the same
    bytes), `size` its bytes. `calls` make it: each finds the place in `p.prepared[0]`; its tensors
    are those of the call that wants it unless given, and it may read nothing but `tensor`.
    """

    tensor: Tensor
    form: Hashable
    size: int
    calls: Sequence[Call]


class Call(NamedTuple):
    """One launch of a kernel for a node: `grid` blocks of `block` threads, `shared_memory` bytes of
    dynamic memory for each.

    `params` are the op's: int64 or float64. `scratch`: bytes of memory for this node's calls
    alone, in `p.scratch`. `prepared` are the sources that it reads in another form: `p.prepared[i]`
    is where the i-th lies. `tensors` are what the block of parameters holds, those that are written
    first: the node and its sources unless they are given.
    """

    kernel: Kernel
    grid: Dim3
    block: int
    params: Sequence[Param] = ()
    shared_memory: int = 0
    scratch: int = 0
    prepared: Sequence[Prepared] = ()
    tensors: Sequence[Tensor] = ()
    n_written: int = 1

    def kernels(self) -> list[Kernel]:
        """All that must be loaded."""
        before = [k for made in self.prepared for call in made.calls for k in call.kernels()]
        return [*before, self.kernel]

    @property
    def shared(self) -> int:
        """Memory that calls share, so that they must run in order (see `steps`)."""
        return self.scratch


class Implementation(NamedTuple):
    """How an op is computed: whether a node is supported, and the calls that compute it."""

    supports: Callable[[Tensor], bool]
    calls: Callable[[Tensor], Sequence[Call]]


TABLE: Final[dict[Op, Implementation]] = {}
FUSERS: Final = Fusers[Call]()
fuses = FUSERS.fuses


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


def find(node: Tensor) -> Implementation | None:
    """The implementation for a node's op; None if there is none."""
    return TABLE.get(node.op)
