"""qwen2moe: Qwen 1.5 MoE and Qwen 2 57B-A14B. Experts, and a gated expert that all tokens use.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from dataclasses import replace

from ..keys import Keys
from .experts import read_experts
from .qwen2 import Qwen2


class Qwen2MoE(Qwen2):
    """arXiv 2407.10671

    The weights of the chosen experts are not divided by their sum.
    """

    name = "qwen2moe"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        if "expert_feed_forward_length" not in keys:  # the first files: only the sum of all widths
            n_ff = self.hp.layers[0].n_ff
            self.hp = replace(self.hp, n_ff_exp=n_ff // self.hp.n_expert_used)
        self.experts = read_experts(keys, self.hp, shared_gate=True)
