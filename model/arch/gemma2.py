"""gemma2: Gemma 2. Norms before and after each part, soft caps, and a window in every other layer.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from ..hparams import with_windows
from ..keys import Keys
from .decoder import SandwichNorms
from .gemma import Gemma
from .layer_build import LayerBuild


class Gemma2(SandwichNorms, Gemma):
    """arXiv 2408.00118"""

    name = "gemma2"
    default_cap = 30.0

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=2, n_swa=4096)
        self.attn_cap = keys.positive("attn_logit_softcapping", 50.0)
        self.scale = self.scale_of(largest=46)

    def attend(self, b: LayerBuild, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return b.attend(q, k, v, scale=self.scale, softcap=self.attn_cap)
