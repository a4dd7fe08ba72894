"""A CUDA kernel's own words of the block of parameters: `struct Params` of src/device.cuh.

Knows no memory. Tested by tests/kernels/test_cuda_plan.py.
"""

from __future__ import annotations

from typing import Final

from ..plan.params import OWN

SCRATCH: Final = OWN  # address of the scratch memory that all calls share
ERROR: Final = SCRATCH + 1  # address of the error report
CALL: Final = ERROR + 1  # number of this call
N_BLOCKS: Final = CALL + 1  # blocks of this call in the grid's first dimension
N_WORDS: Final = N_BLOCKS + 1
MAX_PARTS: Final = 4  # launches that may be merged into one
