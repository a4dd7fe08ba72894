"""bailingmoe: Ling and Ring 1. A llama with DeepSeekMoE's experts.

bailingmoe2: Ling and Ring 2. Norms of heads, and experts as in DeepSeek-V3.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..keys import Keys
from .decoder import QKNorm
from .deepseek import DeepSeek
from .experts import Gating, read_experts


class BailingMoE(DeepSeek):
    """arXiv 2503.05139"""

    name = "bailingmoe"


class BailingMoE2(QKNorm):
    """arXiv 2510.22115"""

    name = "bailingmoe2"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.experts = read_experts(keys, self.hp, Gating.SIGMOID)
