"""All kernels of the CPU. Importing this fills the tables.

Tested by tests/kernels/test_ops.py.
"""

from __future__ import annotations

from typing import Final

from ..plan.kernel_set import KernelSet
from . import ops as _ops  # noqa: F401 - fill the tables
from . import packed as _packed  # noqa: F401
from .table import FUSERS, table_of

KERNELS: Final = KernelSet(table_of, FUSERS)
