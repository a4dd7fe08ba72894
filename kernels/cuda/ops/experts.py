"""The pairs (token, its i-th expert) of MUL_MAT_ID, sorted by expert, for tiles per expert.

Products of tiles read them (src/expert_runs.cuh); src/group_by_expert.cu makes them.
Tested by tests/kernels/test_cuda_tensor_core.py and test_cuda_floats.py.
"""

from __future__ import annotations

from typing import Final

from ....graph.tensor import Tensor
from ...plan.calls import PreparedSource
from ..table import CudaCall, CudaKernel, CudaSource

GROUP_THREADS: Final = 256  # threads of a block of src/group_by_expert.cu
GROUP: Final = CudaKernel(CudaSource.of("group_by_expert.cu"), "group_by_expert")


def groups_of_experts(ids: Tensor, n_experts: int, place: int) -> PreparedSource[CudaCall]:
    """The pairs, sorted by expert; `ids` is tensor number `place`."""
    made = CudaCall(GROUP, (n_experts, 1, 1), GROUP_THREADS, (n_experts, place))
    size = 4 * (n_experts + 1 + ids.n_elements)
    return PreparedSource(ids, ("by expert", n_experts), size, [made])


def most_runs(n_pairs: int, n_experts: int, size: int) -> int:
    """The most runs of up to `size` pairs of one expert: its last run may have few."""
    return n_pairs // size + min(n_experts, n_pairs)
