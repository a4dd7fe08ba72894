"""The products of LoRA adapters, with src/lora.cu. Tested by tests/kernels/test_ops.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import Op
from ....graph.tensor import Tensor
from ..table import CudaCall, CudaKernel, CudaSource, implements
from .elementwise import MAX_BLOCKS, is_countable

SOURCE: Final = CudaSource.of("lora.cu")
THREADS: Final = 128
WARP: Final = 32


def _supports(node: Tensor) -> bool:
    return is_countable(node, *node.src)


def _call(name: str, n_threads: int) -> Sequence[CudaCall]:
    blocks = min(-(-n_threads // THREADS), MAX_BLOCKS)
    return [CudaCall(CudaKernel(SOURCE, name), (blocks, 1, 1), THREADS)]


@implements(Op.LORA_A, supports=_supports)
def lora_a(node: Tensor) -> Sequence[CudaCall]:
    return _call("lora_a", WARP * node.n_elements)


@implements(Op.LORA_B, supports=_supports)
def lora_b(node: Tensor) -> Sequence[CudaCall]:
    return _call("lora_b", node.n_elements)
