"""The CUDA kernels: sources, kernel calls, and the tables of kernels by op and by chain.

Each module of `ops/` adds its ops with `implements`, and its chains with `fuses`. If the calls
depend on the device's limits, with `implements_sized` and `fuses_sized`. Knows no memory, no driver
and no compiler. Tested by tests/kernels/test_cuda_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ...graph.op import Op
from ...graph.tensor import Tensor
from ..plan.calls import Number, PreparedSource
from ..plan.chains import NodeChain
from ..plan.fusion import Fusers
from ..plan.op_table import OpTable
from .limits import Limits

Define = str | int


@dataclass(frozen=True, slots=True)
class CudaSource:
    """A file of `src/` with definitions: the unit that is compiled, cached and loaded.

    `defines` are pairs (name, value): types and sizes that must be known at compile time.
    """

    file: str
    defines: tuple[tuple[str, Define], ...] = ()

    @classmethod
    def of(cls, file: str, **defines: Define) -> CudaSource:
        return cls(file, tuple(sorted(defines.items())))

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.defines)
        return f"{self.file}[{values}]" if values else self.file


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A kernel: its source and its name there. `merges`: independent launches of it may run as one,
    of the kernel `merged` (MERGING_KERNEL of src/device.cuh)."""

    source: CudaSource
    name: str
    merges: bool = field(default=False, compare=False)

    @property
    def merged(self) -> CudaKernel:
        return CudaKernel(self.source, f"{self.name}_merged")

    def __str__(self) -> str:
        return f"{self.name} of {self.source}"


Dim3 = tuple[int, int, int]


class CudaCall(NamedTuple):
    """One launch of a kernel for a node: see `plan.calls.KernelCall`.

    `grid` blocks of `block` threads, each block with `shared_memory` bytes of dynamic memory.
    `scratch` is in bytes, at `p.scratch`. `p.prepared[i]` is the address of the `i`-th prepared
    source.
    """

    kernel: CudaKernel
    grid: Dim3
    block: int
    params: Sequence[Number] = ()
    shared_memory: int = 0
    scratch: int = 0
    prepared: Sequence[PreparedSource[CudaCall]] = ()
    tensors: Sequence[Tensor] = ()
    n_written: int = 1


OPS: Final = OpTable[CudaCall]()
FUSERS: Final = Fusers[CudaCall]()
implements, fuses = OPS.implements, FUSERS.fuses

SizedCalls = Callable[[Tensor, Limits], Sequence[CudaCall]]
SizedFuser = Callable[[Any, Limits], Sequence[CudaCall] | None]


class SizedOp(NamedTuple):
    """An op whose calls depend on the device's limits."""

    supports: Callable[[Tensor, Limits], bool]
    calls: SizedCalls


SIZED_OPS: Final[dict[Op, SizedOp]] = {}
SIZED_FUSERS: Final[dict[type[NodeChain], SizedFuser]] = {}


def implements_sized(
    *ops: Op, supports: Callable[[Tensor, Limits], bool]
) -> Callable[[SizedCalls], SizedCalls]:
    """Like `implements`, for functions of a node and the device's limits."""

    def declare(calls: SizedCalls) -> SizedCalls:
        for op in ops:
            assert op not in SIZED_OPS and op not in OPS.entries, f"{op.name} is implemented twice"
            SIZED_OPS[op] = SizedOp(supports, calls)
        return calls

    return declare


def fuses_sized(kind: type[NodeChain]) -> Callable[[SizedFuser], SizedFuser]:
    """Like `fuses`, for a function of a chain and the device's limits."""

    def declare(fuser: SizedFuser) -> SizedFuser:
        assert kind not in SIZED_FUSERS, f"{kind.__name__} is fused twice"
        SIZED_FUSERS[kind] = fuser
        return fuser

    return declare
