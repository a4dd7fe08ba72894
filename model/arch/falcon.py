"""falcon: Falcon 1 and 2. Attention and feed-forward side by side.

Large models have a norm of attention's own.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from .build import Norm
from .decoder import Decoder
from .layer_build import LayerBuild


class Falcon(Decoder):
    """arXiv 2311.16867"""

    name = "falcon"
    norm = Norm.LAYER

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        n, m = b.norm(x, "attn_norm"), b.norm(x, "attn_norm_2", optional=True)
        y, n, x = b.outputs(self.attention(b, n if m is x else m), n, x)
        return b.add(b.add(y, self.ffn(b, n), "ffn_inp"), x, "l_out")

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, ops.gelu_erf)
