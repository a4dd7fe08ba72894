"""smallthinker: SmallThinker. The router reads the layer's input, before its attention.

Layers with a window have rope, those without have none. Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from ..hparams import with_windows
from ..keys import Keys
from .decoder import Decoder
from .experts import Gating, moe, read_router
from .layer_build import LayerBuild


class SmallThinker(Decoder):
    """arXiv 2507.20984"""

    name = "smallthinker"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=4, full_first=True, full_rope=False)
        self.router = read_router(keys, Gating.SIGMOID, renorm=True)

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.attention(b, b.norm(x, "attn_norm")), x)
        h = b.add(y, x, "ffn_inp")
        y = moe(b, b.norm(h, "ffn_norm"), self.router, ops.reglu, routed=x)
        return b.add(y, h, "l_out")
