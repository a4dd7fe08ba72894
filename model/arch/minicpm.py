"""minicpm: MiniCPM 1 and 2. A granite; old files lack the keys of its factors.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

import math
from typing import Final

from ..keys import Keys
from .granite import Granite
from .longrope import LongRope

N_EMBD_BASE: Final = 256  # the width at which logits have no factor


class MiniCPM(Granite, LongRope):
    """arXiv 2404.06395"""

    name = "minicpm"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        n_layer, n_embd = self.hp.n_layer, self.hp.n_embd
        self.embedding_scale = keys.factor("embedding_scale", 12.0)
        self.residual_scale = keys.factor("residual_scale", 1.4 / math.sqrt(n_layer))
        self.logit_scale = keys.factor("logit_scale", n_embd / N_EMBD_BASE)
