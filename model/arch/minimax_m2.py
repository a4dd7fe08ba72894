"""minimax-m2: MiniMax-M2. Norms of all heads together; a part of a head is rotated.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..keys import Keys
from .decoder import WideQKNorm
from .experts import Gating, read_experts


class MiniMaxM2(WideQKNorm):
    """https://github.com/MiniMax-AI/MiniMax-M2"""

    name = "minimax-m2"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.experts = read_experts(keys, self.hp, Gating.SIGMOID, renorm=True)
