"""talkie: Talkie. Norms without weights, and the embeddings are added after each layer.

Queries and keys are normalized after their rotation; each head's queries have a factor.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from ..keys import Keys
from .build import GraphBuild
from .decoder import NormsWithoutWeights
from .layer_build import LayerBuild


class Talkie(NormsWithoutWeights):
    """https://huggingface.co/talkie-lm"""

    name = "talkie"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.logit_scale = keys.positive("logit_scale")

    def forward(self, g: GraphBuild) -> Tensor:
        x = embeddings = g.normed(g.embed())
        for il in range(self.hp.n_layer):
            b = LayerBuild.of(g, il)
            (skip,) = b.outputs(embeddings)
            factor = b.required("layer_output_scale.weight", (1,))
            x = g.steered(b.add(self.layer(b, x), ops.mul(skip, factor), "l_skip"), il)
        return self.logits(g, x)

    def rotated(self, b: LayerBuild, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = super().rotated(b, q, k)
        return b.norm(q, "attn_q_norm", ne=(1, b.shape.n_head)), b.g.normed(k)

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        return ops.scale(super().logits(g, x), self.logit_scale)
