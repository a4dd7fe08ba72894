"""What a CUDA kernel is given: one block of 64-bit words for each call, the same for every op.

It is `struct Params` of src/device.cuh, passed by value: tensors (address, ne, nb), scratch memory,
where to report an error, sources in another form, the op's own parameters. Knows no memory.
Tested by tests/kernels/test_cuda_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ...graph.tensor import Tensor
from ..plan.steps import MAX_PREPARED

MAX_TENSORS: Final = 7  # a node and up to 6 sources
TENSOR_WORDS: Final = 9
SCRATCH: Final = MAX_TENSORS * TENSOR_WORDS
ERROR: Final = SCRATCH + 1
CALL: Final = ERROR + 1
PREPARED: Final = CALL + 1
PARAMS: Final = PREPARED + MAX_PREPARED
MAX_PARAMS: Final = 16
N_WORDS: Final = PARAMS + MAX_PARAMS

Words = npt.NDArray[np.int64]
Param = int | float


def write_params(
    words: Words,
    node: Tensor,
    tensors: Sequence[Tensor],
    params: Sequence[Param],
    address_of: Callable[[Tensor, Tensor], int],
) -> None:
    """Fill a block for a call of `node`: its tensors and the op's parameters."""
    assert len(tensors) <= MAX_TENSORS and len(params) <= MAX_PARAMS, f"{node!r} has too many"
    for i, t in enumerate(tensors):
        at = i * TENSOR_WORDS
        words[at : at + TENSOR_WORDS] = (address_of(node, t), *t.ne, *t.nb)
    floats = words.view(np.float64)
    for i, value in enumerate(params):
        if isinstance(value, float):
            floats[PARAMS + i] = value
        else:
            words[PARAMS + i] = value
