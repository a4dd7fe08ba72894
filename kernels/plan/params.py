"""The block of parameters of a kernel call: 64-bit words in the same order on every backend.

    0              address, ne and nb of the node and its sources, or of the call's own tensors
    PREPARED       addresses of prepared sources, or of the one that the call makes
    PARAMS         the op's own parameters: int64, float64 or the address of a kernel
    OWN            the backend's own words

Knows no memory. Tested by tests/kernels/test_cpu_plan.py and tests/kernels/test_cuda_plan.py.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .calls import KernelCall
from .steps import MAX_PREPARED, AddressOf, Step

MAX_TENSORS: Final = 10  # a node and up to 9 sources
TENSOR_WORDS: Final = 9
PREPARED: Final = MAX_TENSORS * TENSOR_WORDS
PARAMS: Final = PREPARED + MAX_PREPARED
MAX_PARAMS: Final = 16
OWN: Final = PARAMS + MAX_PARAMS

Words = npt.NDArray[np.int64]


def write_params(words: Words, step: Step[Any], address_of: AddressOf, slots: list[int]) -> None:
    """Fill the block of a step except the backend's own words. `slots` are addresses."""
    call: KernelCall = step.call
    fits = len(step.tensors) <= MAX_TENSORS and len(call.params) <= MAX_PARAMS
    assert fits, f"{step.node!r} has too many tensors or parameters"
    for i, t in enumerate(step.tensors):
        at = i * TENSOR_WORDS
        words[at : at + TENSOR_WORDS] = (address_of(step.node, t), *t.ne, *t.nb)
    for i, slot in enumerate(step.slots):
        words[PREPARED + i] = slots[slot]
    floats = words.view(np.float64)
    for i, value in enumerate(call.params):
        if isinstance(value, float):
            floats[PARAMS + i] = value
        else:
            words[PARAMS + i] = value if isinstance(value, int) else value.address
