"""cohere2moe: Command with experts. Cohere 2's layers, the first of them dense.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph import Tensor, ops
from ..hparams import read_rope
from ..keys import Keys
from .build import Norm
from .cohere2 import Cohere2
from .decoder import SigmoidExperts
from .experts import Gating
from .layer_build import LayerBuild


class Cohere2MoE(SigmoidExperts, Cohere2):
    """https://huggingface.co/CohereLabs

    Dense layers have rope even if they have no window. The shared expert and the chosen ones are
    averaged. The norm is an RMS norm if the file has its epsilon.
    """

    name = "cohere2moe"

    def __init__(self, keys: Keys) -> None:
        if keys.number("attention.layer_norm_rms_epsilon", 0.0):
            self.norm = Norm.RMS
        super().__init__(keys)
        experts = self.experts
        if experts.router.gating is Gating.SOFTMAX:  # of the chosen experts only
            experts = replace(experts, router=replace(experts.router, renorm=True))
        self.experts = experts
        rope = read_rope(keys, self.hp.layers[0].head_dim_k)
        self.hp = self.hp.with_layers(
            lambda il, layer: replace(layer, rope=rope) if il < experts.n_dense else layer
        )

    def ffn(self, b: LayerBuild, x: Tensor) -> Tensor:
        y = super().ffn(b, x)
        averaged = self.experts.are_in(b.il) and self.experts.n_ff_shared
        return ops.scale(y, 0.5) if averaged else y
