"""afmoe: Arcee Trinity. Gated attention, norms before and after each part, windows and experts.

Layers with a window have rope, those without have none. Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

import math

from ...graph import Tensor, ops
from ..hparams import with_windows
from ..keys import Keys
from .build import GraphBuild
from .decoder import GatedAttention, QKNorm, SandwichNorms, SigmoidExperts


class AFMoE(SigmoidExperts, GatedAttention, QKNorm, SandwichNorms):
    """arXiv 2602.17004"""

    name = "afmoe"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=4, full_rope=False)

    def embed(self, g: GraphBuild) -> Tensor:
        return ops.scale(g.embed(), math.sqrt(self.hp.n_embd))
