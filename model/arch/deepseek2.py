"""deepseek2: DeepSeek V2, V2-Lite and V3, and models that ship as it: Kimi K2, GLM-4.7-Flash.

Latent attention, and DeepSeekMoE: small experts, some for all tokens, and a dense part in the first
layers. Tested by tests/model/test_arch_golden.py and test_arch_deepseek2.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...graph import RopeMode
from ..keys import Keys
from .base import read_temperature
from .experts import Experts, Gating, read_experts
from .mla import MLA


class DeepSeek2(MLA):
    """arXiv 2405.04434, 2412.19437

    With YaRN, files have a factor of the scores in place of one of the rotated elements.
    """

    name = "deepseek2"
    rope_mode = RopeMode.NORMAL
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.experts: Experts = self._read_experts(keys)
        self.temperature = read_temperature(keys, self.hp)
        multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
        rope = self.hp.layers[0].rope
        assert rope is not None, "latent attention rotates"  # see check_n_rot
        self.scale = 1.0 / math.sqrt(self.head_dim)
        if multiplier and rope.ext_factor:
            log_factor = -math.log(rope.freq_scale)
            self.scale *= (1.0 + multiplier * log_factor) ** 2
            unscaled = replace(rope, attn_factor=1.0 / (1.0 + 0.1 * log_factor))
            self.hp = self.hp.with_layers(lambda _, layer: replace(layer, rope=unscaled))

    def _read_experts(self, keys: Keys) -> Experts:
        """V2 has softmax, and rates a group by its best expert. V3 has a sigmoid and a bias.

        Some files of GLM-4.7-Flash have the bias, but not the key of the function.
        """
        has_bias = any(".exp_probs_b" in name for name in keys.file.tensors)
        experts = read_experts(keys, self.hp, Gating.SIGMOID if has_bias else Gating.SOFTMAX)
        if experts.router.gating is not Gating.SOFTMAX:
            return experts
        return replace(experts, router=replace(experts.router, n_group_best=1))
