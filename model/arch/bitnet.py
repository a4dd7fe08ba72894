"""bitnet: BitNet b1.58. Norms within each part; each matrix may have a factor of its product.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from .decoder import Decoder
from .layer_build import LayerBuild


class BitNet(Decoder):
    """arXiv 2402.17764, 2504.12285"""

    name = "bitnet"

    def project(self, b: LayerBuild, x: Tensor) -> Tensor:
        return super().project(b, b.norm(x, "attn_sub_norm"))

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        gate, up = (b.linear(x, name, b.shape.n_ff) for name in ("ffn_gate", "ffn_up"))
        return b.down(b.norm(self.act(gate, up), "ffn_sub_norm"))
