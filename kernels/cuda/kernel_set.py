"""All CUDA kernels, with the sizes for a device. Importing this fills the tables.

Tested by tests/kernels/test_ops.py and test_cuda_limits.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, TypeVar

from ..plan.fusion import Fusers
from ..plan.kernel_set import KernelSet
from ..plan.op_table import OpTable
from . import ops as _ops  # noqa: F401 - fill the tables
from .limits import H100, Limits
from .table import FUSERS, OPS, SIZED_FUSERS, SIZED_OPS, CudaCall

X = TypeVar("X")
Y = TypeVar("Y")


@cache
def kernels_for(limits: Limits) -> KernelSet[CudaCall]:
    """The kernels for a device with these limits."""
    sized, fusers = OpTable[CudaCall](), Fusers[CudaCall](FUSERS)
    for op, (supports, calls) in SIZED_OPS.items():
        sized.implements(op, supports=_with(limits, supports))(_with(limits, calls))
    for kind, fuser in SIZED_FUSERS.items():
        fusers.fuses(kind)(_with(limits, fuser))
    return KernelSet(lambda node: sized if node.op in sized.entries else OPS, fusers)


def _with(limits: Limits, f: Callable[[X, Limits], Y]) -> Callable[[X], Y]:
    return lambda x: f(x, limits)


KERNELS: Final = kernels_for(H100)  # for reports without a device
