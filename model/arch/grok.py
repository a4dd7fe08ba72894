"""grok: Grok 1 and 2. Norms before and after each part, experts, and soft caps.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...graph import Tensor, ops
from ..keys import Keys
from .build import GraphBuild, softcapped
from .decoder import Decoder
from .experts import read_experts
from .layer_build import LayerBuild


class Grok(Decoder):
    """https://github.com/xai-org/grok-1"""

    name = "grok"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.act = ops.geglu
        self.embedding_scale = keys.factor("embedding_scale", 78.38367176906169)
        self.scale = keys.factor("attention.output_scale", 128**-0.5)
        self.attn_cap = keys.positive("attn_logit_softcapping", 30.0)
        self.logit_scale = keys.factor("logit_scale", 3**-0.5)
        self.final_cap = keys.factor("final_logit_softcapping", 0.0)
        experts = read_experts(keys, self.hp, renorm=True)
        router = replace(experts.router, softcap=keys.factor("router_logit_softcapping", 0.0))
        self.experts = replace(experts, router=router, act=ops.geglu)
        self.has_dense = "blk.0.ffn_up.weight" in keys.file.tensors  # beside the experts

    def embed(self, g: GraphBuild) -> Tensor:
        return ops.scale(g.embed(), self.embedding_scale)

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.attention(b, b.norm(x, "attn_norm")), x)
        x = b.add(b.norm(y, "attn_output_norm"), x, "ffn_inp")
        y = self.ffn(b, b.norm(x, "ffn_norm"))
        files = b.parts(["layer_output_norm.weight"], ["post_ffw_norm.weight"])
        weight = b.required("post_ffw_norm.weight", (y.ne[0],), files=files)
        return b.add(ops.mul(b.g.normed(y), weight), x, "l_out")

    def attend(self, b: LayerBuild, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return b.attend(q, k, v, scale=self.scale, softcap=self.attn_cap)

    def ffn(self, b: LayerBuild, x: Tensor) -> Tensor:
        y = super().ffn(b, x)
        return ops.scale(ops.add(self.dense(b, x), y), math.sqrt(0.5)) if self.has_dense else y

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        return softcapped(ops.scale(super().logits(g, x), self.logit_scale), self.final_cap)
