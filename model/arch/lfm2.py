"""lfm2: LFM2 and LFM2.5. Gated short convolutions in most layers, attention in the others.

lfm2moe: LFM2 8B-A1B and 24B-A2B. The same with experts.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from ..hparams import with_windows
from ..keys import Keys
from .build import GraphBuild
from .decoder import QKNorm
from .experts import Gating, read_experts
from .layer_build import LayerBuild
from .recurrent import ShortConv, with_states, without_attention


class LFM2(QKNorm):
    """arXiv 2511.23404"""

    name = "lfm2"
    lacks_parts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.conv = ShortConv(keys.count("shortconv.l_cache", low=2))
        layers = [il for il, layer in enumerate(self.hp.layers) if not layer.n_head_kv]
        self.hp = with_windows(keys, without_attention(self.hp, layers))
        self.hp = with_states(self.hp, layers, self.conv.sizes(self.hp.n_embd))

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        return self.conv.build(b, x) if b.shape.states else super().attention(b, x)

    def output_norm(self, g: GraphBuild, x: Tensor) -> Tensor:
        return g.norm(x, "token_embd_norm", self.hp.n_layer).named("result_norm")


class LFM2MoE(LFM2):
    """arXiv 2511.23404"""

    name = "lfm2moe"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.experts = read_experts(keys, self.hp, Gating.SIGMOID, renorm=True)
