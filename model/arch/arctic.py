"""arctic: Snowflake Arctic. A dense part and experts side by side; these read the layer's input.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode, Tensor
from .decoder import Decoder
from .layer_build import LayerBuild


class Arctic(Decoder):
    """https://www.snowflake.com/en/blog/arctic-open-efficient-foundation-language-models-snowflake"""

    name = "arctic"
    needs_experts = True
    rope_mode = RopeMode.NORMAL

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.attention(b, b.norm(x, "attn_norm")), x)
        h = b.add(y, x, "ffn_inp")
        h = b.add(b.gated(b.norm(h, "ffn_norm"), self.hp.n_embd), h, "ffn_out")
        return b.add(self.ffn(b, b.norm(x, "ffn_norm_exps")), h, "l_out")
