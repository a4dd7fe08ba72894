"""olmo: OLMo. Its norms have no weights, and queries, keys and values may be limited.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode, Tensor
from .build import GraphBuild, LayerBuild, Norm, as_logits
from .decoder import ClampedQKV


class Olmo(ClampedQKV):
    """arXiv 2402.00838."""

    name = "olmo"
    norm = Norm.LAYER
    rope_mode = RopeMode.NORMAL

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.attention(b, b.g.normed(x)), x)
        x = b.add(y, x, "ffn_inp")
        return b.add(self.ffn(b, b.g.normed(x)), x, "l_out")

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        return as_logits(g.output(g.normed(x)))
