"""hunyuan-dense: Hunyuan 0.5B to 7B. Queries and keys are normalized after their rotation.

hunyuan-moe: Hunyuan Large and A13B. The same with experts.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph import Tensor
from ..keys import Keys
from .decoder import Decoder
from .experts import read_experts
from .layer_build import LayerBuild


class Hunyuan(Decoder):
    """arXiv 2411.02265"""

    def rotated(self, b: LayerBuild, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = super().rotated(b, q, k)
        return b.norm(q, "attn_q_norm"), b.norm(k, "attn_k_norm")


class HunyuanDense(Hunyuan):
    """https://github.com/Tencent-Hunyuan

    A file may declare one expert: its dense feed-forward part.
    """

    name = "hunyuan-dense"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp, self.experts = replace(self.hp, n_expert=0, n_expert_used=0, n_ff_exp=0), None


class HunyuanMoE(Hunyuan):
    """arXiv 2411.02265"""

    name = "hunyuan-moe"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.experts = read_experts(keys, self.hp, renorm=True)
