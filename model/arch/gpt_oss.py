"""gpt-oss: experts with biases and a limited activation, sinks, and windows in every other layer.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Op, Tensor, ops
from ..hparams import read_windows, with_swa
from ..keys import Keys
from .build import LayerBuild
from .decoder import Decoder
from .experts import Experts, Gating, Router
from .weights import Bias


class GptOss(Decoder):
    """arXiv 2508.10925. A sink is a score per head that joins the softmax's denominator."""

    name = "gpt-oss"
    needs_experts = True
    qkv_bias = Bias.OPTIONAL
    bias = Bias.REQUIRED
    ffn_norm = "post_attention_norm"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        windows = read_windows(keys, self.hp.n_layer, period=2)
        self.hp = with_swa(keys, self.hp, windows)
        self.experts = Experts(
            Router(Gating.CHOSEN, renorm=False, logit_bias=Bias.REQUIRED),
            act=ops.swiglu_oai,
            bias=Bias.REQUIRED,
        )

    def attend(self, b: LayerBuild, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sinks = b.required("attn_sinks.weight", (b.shape.n_head,), Op.FLASH_ATTN_EXT)
        return b.attend(q, k, v, sinks=sinks)
