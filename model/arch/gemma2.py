"""gemma2: Gemma 2. Norms before and after each part, soft caps, and a window in every other layer.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

import math

from ...graph import Tensor, ops
from ..hparams import read_windows
from ..keys import Keys
from .build import GraphBuild, LayerBuild, as_logits, softcapped
from .decoder import SandwichNorms


class Gemma2(SandwichNorms):
    """arXiv 2408.00118."""

    name = "gemma2"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = self.hp.with_windows(read_windows(keys, self.hp.n_layer, period=2))
        self.act = ops.geglu
        self.attn_cap = keys.positive("attn_logit_softcapping", 50.0)
        self.final_cap = keys.positive("final_logit_softcapping", 30.0)

    def embed(self, g: GraphBuild) -> Tensor:
        return ops.scale(g.embed(), math.sqrt(self.hp.n_embd))

    def attend(self, b: LayerBuild, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return b.attend(q, k, v, scale=self.scale, softcap=self.attn_cap)

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        return as_logits(softcapped(g.output(g.output_norm(x)), self.final_cap))
