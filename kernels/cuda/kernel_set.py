"""All CUDA kernels. Importing this fills the tables. Tested by tests/kernels/test_ops.py."""

from __future__ import annotations

from typing import Final

from ..plan.kernel_set import KernelSet
from . import ops as _ops  # noqa: F401 - fill the tables
from .table import FUSERS, OPS

KERNELS: Final = KernelSet(lambda node: OPS, FUSERS)
