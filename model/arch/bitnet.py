"""bitnet: BitNet b1.58. Norms within each part; each matrix may have a factor of its product.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from .build import LayerBuild
from .decoder import Decoder


class BitNet(Decoder):
    """arXiv 2402.17764, 2504.12285."""

    name = "bitnet"

    def qkv(self, b: LayerBuild, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().qkv(b, x)
        return scaled(b, q, "attn_q"), scaled(b, k, "attn_k"), scaled(b, v, "attn_v")

    def project(self, b: LayerBuild, x: Tensor) -> Tensor:
        return scaled(b, super().project(b, b.norm(x, "attn_sub_norm")), "attn_output")

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        gate, up = (
            scaled(b, b.linear(x, name, b.shape.n_ff), name) for name in ("ffn_gate", "ffn_up")
        )
        hidden = b.norm(self.act(gate, up), "ffn_sub_norm")
        return scaled(b, b.down(hidden), "ffn_down")


def scaled(b: LayerBuild, y: Tensor, name: str) -> Tensor:
    """Return y times the factor of the matrix `name`, if the file has it."""
    factor = b.weight(f"{name}.scale", (1,))
    return y if factor is None else ops.mul(y, factor)
