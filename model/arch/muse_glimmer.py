"""muse-glimmer: Muse Glimmer. Gated attention; rope in layers with a window only.

The embeddings are normalized, and logits have a factor and a cap.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from typing import Final

from ...graph import RopeMode, Tensor, ops
from ..hparams import with_windows
from ..keys import Keys
from .build import GraphBuild, softcapped
from .decoder import GatedAttention, QKNorm, SandwichNorms
from .layer_build import LayerBuild

POST_EPS: Final = 1e-8  # of the norms after each part


class MuseGlimmer(GatedAttention, QKNorm, SandwichNorms):
    """https://github.com/ggml-org/llama.cpp/blob/master/src/models/muse-glimmer.cpp"""

    name = "muse-glimmer"
    rope_mode = RopeMode.NORMAL

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=4, full_rope=False)
        self.logit_scale = keys.positive("logit_scale")
        self.final_cap = keys.factor("final_logit_softcapping", 0.0)

    def embed(self, g: GraphBuild) -> Tensor:
        return g.normed(g.embed())

    def post_norm(self, b: LayerBuild, y: Tensor, name: str) -> Tensor:
        return ops.mul(ops.rms_norm(y, POST_EPS), b.required(f"{name}.weight", y.ne[:1]))

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        return softcapped(ops.scale(super().logits(g, x), self.logit_scale), self.final_cap)
