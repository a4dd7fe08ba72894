"""MUL_MAT and MUL_MAT_ID: chooses kernels by the type of weights and the number of columns.

The bits do not depend on the number of columns: see src/blocks.cuh.
Tested by tests/kernels/test_cuda_quantized.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.op import Op
from ....graph.tensor import Tensor
from ...plan.chains import GateUp
from ..limits import Limits
from ..table import CudaCall, fuses_sized, implements_sized
from . import floats, quantized, tensor_core


def _is_few(node: Tensor) -> bool:
    """True if reading the weights limits the speed of a product."""
    if node.op is Op.MUL_MAT:
        return node.src[1].ne[1] <= quantized.COLUMNS
    # each pair of a token and an expert reads the expert's matrix; few pairs share an expert
    return node.src[2].n_elements <= max(quantized.COLUMNS, node.src[0].ne[2])


def _supports(node: Tensor, limits: Limits) -> bool:
    if node.src[0].type.is_quantized:
        return quantized.supports(node, limits)
    return floats.supports(node)


@implements_sized(Op.MUL_MAT, Op.MUL_MAT_ID, supports=_supports)
def _product(node: Tensor, limits: Limits) -> Sequence[CudaCall]:
    if not node.src[0].type.is_quantized:
        return floats.calls(node, limits)
    if _is_few(node) or not tensor_core.supports(node):
        return quantized.calls(node, limits)
    return tensor_core.calls(node, limits)


@fuses_sized(GateUp)
def _gate_up(chain: GateUp, limits: Limits) -> Sequence[CudaCall] | None:
    if not chain.gate.src[0].type.is_quantized:
        return None
    if _is_few(chain.gate):
        return quantized.gate_up_calls(chain, limits)
    return tensor_core.gate_up_calls(chain, limits)
