"""olmoe: OLMoE. Norms of all heads together; the chosen experts' weights keep their sum.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..keys import Keys
from .decoder import WideQKNorm
from .experts import read_experts


class OLMoE(WideQKNorm):
    """arXiv 2409.02060"""

    name = "olmoe"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.experts = read_experts(keys, self.hp)
