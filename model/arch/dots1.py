"""dots1: dots.llm1. Qwen 3's attention, experts as in DeepSeek-V3.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..keys import Keys
from .decoder import QKNorm
from .experts import Gating, read_experts


class Dots1(QKNorm):
    """arXiv 2506.05767"""

    name = "dots1"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.experts = read_experts(keys, self.hp, Gating.SIGMOID)
