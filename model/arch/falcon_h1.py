"""falcon-h1: Falcon-H1. Attention and Mamba 2 side by side in every layer.

Files have the model's multipliers in their weights. Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from ..keys import Keys
from .decoder import Decoder
from .layer_build import LayerBuild
from .recurrent import SSM, Mamba2, with_states


class FalconH1(Decoder):
    """arXiv 2507.22448"""

    name = "falcon-h1"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.mamba = Mamba2(SSM.read(keys))
        self.hp = with_states(self.hp, range(self.hp.n_layer), self.mamba.sizes)

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        n = b.norm(x, "attn_norm")
        y = b.add(self.attention(b, n), self.mamba.build(b, n), "mixed")
        y, x = b.outputs(y, x)
        x = b.add(y, x, "ffn_inp")
        return b.add(self.ffn(b, b.bare_norm(x, "ffn_norm")), x, "l_out")
