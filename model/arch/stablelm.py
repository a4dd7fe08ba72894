"""stablelm: StableLM 2 and StableLM 3B. The 12B one has attention and feed-forward side by side.

A file without ffn_norm has the parallel layer. Part of each head is rotated.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from .build import Norm
from .decoder import QKNormOfEachHead
from .layer_build import LayerBuild


class StableLM(QKNormOfEachHead):
    """arXiv 2402.17834"""

    name = "stablelm"
    norm = Norm.LAYER

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        n = b.norm(x, "attn_norm")
        y, n, x = b.outputs(self.attention(b, n), n, x)
        x = b.add(y, x, "ffn_inp")
        m = b.norm(x, "ffn_norm", optional=True)
        return b.add(self.ffn(b, n if m is x else m), x, "l_out")
