"""Recurrences over states in slots, with src/recurrent.cu. Tested by
tests/kernels/test_recurrent.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import DeltaParams, Op
from ....graph.tensor import Tensor, params_of
from ...plan.node_params import STATE_COLUMNS, has_channel_decay, has_head_decay, state_matrix
from ..table import CudaCall, CudaKernel, CudaSource, implements

SOURCE: Final = CudaSource.of("recurrent.cu")
CONV_THREADS: Final = 128
MAX_TAPS: Final = 8
WARP: Final = 32
ROWS: Final = 16  # of a warp
MAX_WARPS: Final = 16

assert STATE_COLUMNS == WARP, "a lane has a column of a block"


def _fits(node: Tensor) -> bool:
    return state_matrix(node)[0] <= ROWS * MAX_WARPS


def _call(name: str, node: Tensor, n_matrices: int, param: bool) -> Sequence[CudaCall]:
    """A block of threads for each block of columns, a warp for some rows."""
    n_rows, n_columns = state_matrix(node)
    n_blocks = n_matrices * -(-n_columns // STATE_COLUMNS)
    n_threads = WARP * -(-n_rows // ROWS)
    return [CudaCall(CudaKernel(SOURCE, name), (n_blocks, 1, 1), n_threads, (int(param),))]


@implements(Op.SSM_CONV, supports=lambda node: node.src[1].ne[0] <= MAX_TAPS)
def ssm_conv(node: Tensor) -> Sequence[CudaCall]:
    n_blocks, has_bias = -(-node.ne[0] // CONV_THREADS), len(node.src) > 4
    kernel = CudaKernel(SOURCE, "ssm_conv_f32")
    return [CudaCall(kernel, (n_blocks, 1, 1), CONV_THREADS, (int(has_bias),))]


@implements(Op.SSM_SCAN, supports=_fits)
def ssm_scan(node: Tensor) -> Sequence[CudaCall]:
    has_d = len(node.src) > 7
    if has_head_decay(node):
        return _call("ssm_scan_heads_f32", node, node.ne[1], has_d)
    return _call("ssm_scan_channels_f32", node, 1, has_d)


@implements(Op.GATED_DELTA_NET, supports=_fits)
def gated_delta_net(node: Tensor) -> Sequence[CudaCall]:
    interleaved = params_of(node, DeltaParams).interleaved
    name = "gated_delta_net_channels_f32" if has_channel_decay(node) else "gated_delta_net_f32"
    return _call(name, node, node.ne[1], interleaved)
