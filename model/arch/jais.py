"""jais: Jais. A gated GPT-2 with ALiBi, whose scores are divided by the head size.

The weights contain the model's own scales.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..keys import Keys
from .build import Norm
from .decoder import ALiBi
from .weights import Bias


class Jais(ALiBi):
    """arXiv 2308.16149"""

    name = "jais"
    norm = Norm.LAYER
    qkv_bias = Bias.REQUIRED
    bias = Bias.REQUIRED

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.max_bias = keys.factor("attention.max_alibi_bias", 0.0)
        self.scale = 1.0 / self.hp.layers[0].head_dim_k
