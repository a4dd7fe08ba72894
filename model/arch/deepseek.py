"""deepseek: DeepSeek 1 and DeepSeekMoE. Llama's attention; small experts, some for all tokens.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..keys import Keys
from .experts import read_experts
from .llama import Llama


class DeepSeek(Llama):
    """arXiv 2401.06066

    The weights of the chosen experts are not divided by their sum.
    """

    name = "deepseek"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.experts = read_experts(keys, self.hp)
