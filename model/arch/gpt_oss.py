"""gpt-oss: gpt-oss 20B and 120B. Experts with biases, sinks, and windows in every other layer.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import ops
from ..hparams import with_windows
from ..keys import Keys
from .decoder import Sinks
from .experts import Experts, Gating, Router
from .weights import Bias


class GptOss(Sinks):
    """arXiv 2508.10925"""

    name = "gpt-oss"
    needs_experts = True
    bias = Bias.REQUIRED
    ffn_norm = "post_attention_norm"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=2)
        self.experts = Experts(
            Router(Gating.CHOSEN, renorm=False, logit_bias=Bias.REQUIRED),
            act=ops.swiglu_oai,
            bias=Bias.REQUIRED,
        )
