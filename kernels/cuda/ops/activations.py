"""Columns of activations as int8 with a scale for each 32 values: form q8 of src/blocks.cuh.

They are made once for all products with quantized weights that read them.
Tested by tests/kernels/test_cuda_quantized.py and test_cuda_quantized_few.py.
"""

from __future__ import annotations

from typing import Final

from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...plan.calls import PreparedSource
from ..table import CudaCall, CudaKernel, CudaSource

CHUNK: Final = 256  # values that are summed before the sum is added to a product
BLOCK: Final = 32  # values that share a scale
BLOCK_BYTES: Final = BLOCK + 8  # the values, a float and an int
CHUNKS_PER_BLOCK: Final = 4  # chunks of a thread block: one for each warp

FLOATS: Final = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def can_prepare_q8(x: Tensor) -> bool:
    """True if `prepared_q8` accepts `x`."""
    return x.type in FLOATS and x.has_contiguous_rows


def n_chunks(k: int) -> int:
    """The chunks of `k` values; the last one is padded with zeros."""
    return -(-k // CHUNK)


def q8_column_bytes(k: int) -> int:
    """Bytes from one column of `k` values to the next."""
    return n_chunks(k) * (CHUNK // BLOCK) * BLOCK_BYTES


def prepared_q8(x: Tensor) -> PreparedSource[CudaCall]:
    """The rows of `x`, counted over dimensions 1, 2, 3, in form q8.

    `x` must be tensor 2 of the call that reads it, as src[1] of a node is.
    """
    kernel = CudaKernel(CudaSource.of("quantize.cu", T=x.type.name), "quantize_q8")
    n = -(-n_chunks(x.ne[0]) * x.n_rows // CHUNKS_PER_BLOCK)
    made = CudaCall(kernel, (n, 1, 1), 32 * CHUNKS_PER_BLOCK)
    return PreparedSource(x, "q8", x.n_rows * q8_column_bytes(x.ne[0]), [made])
