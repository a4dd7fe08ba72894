"""glm4moe: GLM-4.5, GLM-4.6, Solar Open. Experts as in DeepSeek-V3.

The norm of heads and the biases are optional. Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from .decoder import SigmoidExperts
from .layer_build import LayerBuild


class GLM4MoE(SigmoidExperts):
    """arXiv 2508.06471"""

    name = "glm4moe"
    ffn_norm = "post_attention_norm"

    def rotated(self, b: LayerBuild, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = b.norm(b.heads(q), "attn_q_norm", optional=True)
        k = b.norm(b.heads(k), "attn_k_norm", optional=True)
        return self.rope(b, q, "Qcur"), self.rope(b, k, "Kcur")
