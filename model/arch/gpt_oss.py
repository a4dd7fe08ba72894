"""gpt-oss: gpt-oss 20B and 120B. Experts with biases, sinks, and windows in every other layer.

YaRN's range of pairs is exact, as in openai/gpt-oss (torch/model.py; `truncate` in config.json).
llama.cpp rounds it to whole pairs.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ...graph import ops
from ..hparams import read_rope, with_windows
from ..keys import Keys
from .decoder import Sinks
from .experts import Experts, Gating, Router
from .weights import Bias


class GptOss(Sinks):
    """arXiv 2508.10925

    Attributes:
        whole_pairs: see `Rope`.
    """

    name = "gpt-oss"
    needs_experts = True
    bias = Bias.REQUIRED
    ffn_norm = "post_attention_norm"
    whole_pairs: ClassVar[bool] = False

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        rope = replace(read_rope(keys, self.hp.layers[0].head_dim_k), whole_pairs=self.whole_pairs)
        hp = self.hp.with_layers(lambda _, layer: replace(layer, rope=rope))
        self.hp = with_windows(keys, hp, period=2)
        self.experts = Experts(
            Router(Gating.CHOSEN, renorm=False, logit_bias=Bias.REQUIRED),
            act=ops.swiglu_oai,
            bias=Bias.REQUIRED,
        )
