"""granite: Granite 3 and 4 without experts. Embeddings, attention, parts and logits have factors.

granitemoe: Granite 3 and 4 with experts. Some models also have an expert that all tokens use.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode, Tensor, ops
from ..keys import Keys
from .build import GraphBuild
from .decoder import Decoder
from .experts import read_experts
from .layer_build import LayerBuild


class Granite(Decoder):
    """https://github.com/ibm-granite

    The factors are those of muP (arXiv 2203.03466).
    """

    name = "granite"
    rope_mode = RopeMode.NORMAL

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.embedding_scale = keys.factor("embedding_scale", 1.0)
        self.residual_scale = keys.factor("residual_scale", 1.0)
        self.logit_scale = keys.factor("logit_scale", 1.0)
        self.scale = keys.factor("attention.scale", 0.0) or None
        if self.hp.n_expert:
            self.experts = read_experts(keys, self.hp, renorm=True)
        if not keys.flag("rope.scaling.finetuned", True):
            self.hp = self.hp.with_rope_in(())

    def embed(self, g: GraphBuild) -> Tensor:
        return ops.scale(g.embed(), self.embedding_scale)

    def project(self, b: LayerBuild, x: Tensor) -> Tensor:
        return ops.scale(super().project(b, x), self.residual_scale)

    def ffn(self, b: LayerBuild, x: Tensor) -> Tensor:
        return ops.scale(super().ffn(b, x), self.residual_scale)

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        return ops.scale(super().logits(g, x), 1.0 / self.logit_scale)


class GraniteMoE(Granite):
    """https://github.com/ibm-granite"""

    name = "granitemoe"
