"""gptneox: GPT-NeoX, Pythia, Dolly. Two norms of one input for attention and feed-forward.

Part of each head is rotated. A few models have sequential layers.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from ..keys import Keys
from .build import Norm
from .decoder import Decoder
from .layer_build import LayerBuild
from .weights import Bias


class GPTNeoX(Decoder):
    """arXiv 2204.06745, 2304.01373"""

    name = "gptneox"
    norm = Norm.LAYER
    qkv_bias = Bias.REQUIRED
    bias = Bias.REQUIRED

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.parallel = keys.flag("use_parallel_residual", True)

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        if not self.parallel:
            return super().layer(b, x)
        y, x = b.outputs(self.attention(b, b.norm(x, "attn_norm")), x)
        z = self.ffn(b, b.norm(x, "ffn_norm"))
        return b.add(b.add(y, z, "ffn_inp"), x, "l_out")

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, ops.gelu_erf, self.bias)
