"""muse-glimmer: Muse Glimmer. Gated attention; rope in layers with a window only.

The embeddings are normalized, and logits have a factor and a cap.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from typing import Final

from ...graph import RopeMode, Tensor, ops
from ...graph.op import UnaryOp
from ..hparams import with_windows
from ..keys import Keys
from .build import GraphBuild, LayerBuild, as_logits, softcapped
from .decoder import GatedAttention, QKNorm

POST_EPS: Final = 1e-8  # of the norms after each part


class MuseGlimmer(GatedAttention, QKNorm):
    """Gated attention: arXiv 2505.06708."""

    name = "muse-glimmer"
    rope_mode = RopeMode.NORMAL

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=4).with_rope_in_windows()
        self.logit_scale = keys.positive("logit_scale")
        self.final_cap = keys.factor("final_logit_softcapping", 0.0)

    def embed(self, g: GraphBuild) -> Tensor:
        return g.normed(g.embed())

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.attention(b, b.norm(x, "attn_norm")), x)
        x = b.add(post_norm(b, y, "post_attention_norm"), x, "ffn_inp")
        y = self.ffn(b, b.norm(x, "ffn_norm"))
        return b.add(post_norm(b, y, "post_ffw_norm"), x, "l_out")

    def gate(self, b: LayerBuild, x: Tensor, y: Tensor) -> Tensor:
        return ops.mul(y, ops.unary(b.linear(x, "attn_gate", y.ne[0]), UnaryOp.SIGMOID))

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        logits = ops.scale(g.output(g.output_norm(x)), self.logit_scale)
        return as_logits(softcapped(logits, self.final_cap) if self.final_cap else logits)


def post_norm(b: LayerBuild, x: Tensor, name: str) -> Tensor:
    """Return the norm of x after a part of a layer."""
    return ops.mul(ops.rms_norm(x, POST_EPS), b.required(f"{name}.weight", (b.hp.n_embd,)))
