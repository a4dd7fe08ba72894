"""gemma4: Gemma 4. Inputs of layers, shared keys and values, or experts beside the dense part.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from ..keys import Keys
from .build import GraphBuild
from .experts import Router, moe
from .layer_build import LayerBuild
from .per_layer import PerLayer


class Gemma4(PerLayer):
    """https://ai.google.dev/gemma/docs/core

    Attributes:
        only_keys: the layers whose values are their keys, before norm and rope.
    """

    name = "gemma4"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.read_layers(keys, period=6, n_shared=0, n_input=0)
        tensors = keys.file.tensors
        self.only_keys = {
            il
            for il in range(self.hp.n_layer)
            if f"blk.{il}.attn_k.weight" in tensors and f"blk.{il}.attn_v.weight" not in tensors
        }

    def forward(self, g: GraphBuild) -> Tensor:
        x = self.embed(g)
        inputs = self.inputs(g, x) if self.n_input else None
        for il in range(self.hp.n_layer):
            b = LayerBuild.of(g, il)
            x = self.layer(b, x)
            if inputs is not None:
                x = ops.add(x, self.gated_input(b, x, self.input_of(b, inputs)))
            scale = b.weight("layer_output_scale.weight", (1,))
            x = b.named(x if scale is None else ops.mul(x, scale), "l_out")
            x = g.steered(x, il)
        return self.logits(g, x)

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.attention(b, b.norm(x, "attn_norm")), x)
        x = b.add(b.norm(y, "post_attention_norm"), x, "ffn_inp")
        return ops.add(b.norm(self.ffn(b, x), "post_ffw_norm"), x)

    def keys_values(self, b: LayerBuild, x: Tensor) -> tuple[Tensor, Tensor]:
        if b.il not in self.only_keys:
            return super().keys_values(b, x)
        k = b.heads(b.one_of_qkv(x, "k"))
        return k, k

    def rope(self, b: LayerBuild, x: Tensor, name: str) -> Tensor:
        factors = b.rope_factors() if b.shape.window is None else None
        return b.rope(x, name, self.rope_mode, factors)

    def ffn(self, b: LayerBuild, x: Tensor) -> Tensor:
        dense = self.dense(b, b.norm(x, "ffn_norm"))
        if not self.hp.n_expert:
            return dense
        n_embd = self.hp.n_embd
        routed = ops.scale(b.g.normed(x), n_embd**-0.5)
        routed = ops.mul(routed, b.required("ffn_gate_inp.scale", (n_embd,)))
        x = b.norm(x, "pre_ffw_norm_2")
        y = moe(b, x, Router(), self.act, routed=routed)
        return ops.add(b.norm(dense, "post_ffw_norm_1"), b.norm(y, "post_ffw_norm_2"))
