"""nemotron_h: Nemotron-H, Nemotron Nano 2. Each layer is Mamba 2, attention or a squared ReLU.

nemotron_h_moe: Nemotron 3 Nano. The same with experts.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph import Tensor
from ..keys import Keys
from .build import relu_sqr
from .decoder import Decoder
from .experts import Gating, read_experts
from .layer_build import LayerBuild
from .recurrent import SSM, Mamba2, with_states, without_attention


class NemotronH(Decoder):
    """arXiv 2504.03624"""

    name = "nemotron_h"
    lacks_parts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.mamba = Mamba2(SSM.read(keys))
        layers = self.hp.layers
        others = [il for il, layer in enumerate(layers) if not layer.n_head_kv]
        self.hp = without_attention(self.hp, others).with_rope_in(())
        recurrent = [il for il in others if not layers[il].n_ff]
        self.hp = with_states(self.hp, recurrent, self.mamba.sizes)
        if self.hp.n_expert:
            experts = read_experts(keys, self.hp, Gating.SIGMOID, renorm=True)
            self.experts = replace(experts, ungated=relu_sqr)

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.mixed(b, b.norm(x, "attn_norm")), x)
        return b.add(y, x, "l_out")

    def mixed(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the result of a layer's mixer."""
        if b.shape.states:
            return self.mamba.build(b, x)
        return self.attention(b, x) if b.shape.n_head_kv else self.ffn(b, x)

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, relu_sqr, self.bias)


class NemotronHMoE(NemotronH):
    """https://huggingface.co/nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"""

    name = "nemotron_h_moe"
    needs_experts = True
