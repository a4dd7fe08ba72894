"""The CPU's kernels: a kernel call, and the tables of kernels by op and by chain.

Each module of `ops/` adds its ops with `implements`, and its chains with `fuses`. A node that reads
repacked weights has other kernels: `packed/` adds them with `implements_packed`.
Knows no memory and no threads. Tested by tests/kernels/test_cpu_plan.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...graph.tensor import Tensor
from ..plan.calls import Param, PreparedSource
from ..plan.fusion import Fusers
from ..plan.op_table import OpTable
from .compiler.jit import Kernel

SMALL: Final = 16384  # elements below which a second thread costs more than it gains


class CpuCall(NamedTuple):
    """One call of a kernel for a node: see `plan.calls.KernelCall`.

    `one_thread`: too small to divide, thread 0 computes it alone. Scratch memory in bytes: `work`
    for each thread, `scratch` for all threads and all calls of the node. `params.prepared(p, i)` is
    the address of the `i`-th prepared source.
    """

    kernel: Kernel
    params: Sequence[Param] = ()
    one_thread: bool = False
    work: int = 0
    scratch: int = 0
    prepared: Sequence[PreparedSource[CpuCall]] = ()
    tensors: Sequence[Tensor] = ()
    n_written: int = 1

    def kernels(self) -> list[Kernel]:
        """All kernels to load: the call's own, and those that it calls."""
        return [self.kernel, *(p for p in self.params if isinstance(p, Kernel))]


OPS: Final = OpTable[CpuCall]()  # for tensors in ggml's layouts
PACKED: Final = OpTable[CpuCall]()  # for nodes that read repacked weights
FUSERS: Final = Fusers[CpuCall]()
implements, implements_packed, fuses = OPS.implements, PACKED.implements, FUSERS.fuses


def is_packed(tensor: Tensor) -> bool:
    """True if the tensor is in a buffer of repacked weights."""
    buft = getattr(tensor.root.buffer, "buft", None)  # None without a buffer, or for plain memory
    return bool(getattr(buft, "is_packed", False))


def table_of(node: Tensor) -> OpTable[CpuCall]:
    """The table of kernels for the memory that a node reads."""
    return PACKED if any(map(is_packed, node.src)) else OPS
