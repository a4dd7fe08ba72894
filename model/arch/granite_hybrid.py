"""granitehybrid: Granite 4.0 H, Bamba. Mamba 2 in most layers, attention in the others.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from ..keys import Keys
from .granite import Granite
from .layer_build import LayerBuild
from .recurrent import SSM, Mamba2, with_states, without_attention


class GraniteHybrid(Granite):
    """https://huggingface.co/blog/bamba"""

    name = "granitehybrid"
    lacks_parts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.mamba = Mamba2(SSM.read(keys))
        layers = [il for il, layer in enumerate(self.hp.layers) if not layer.n_head_kv]
        self.hp = with_states(without_attention(self.hp, layers), layers, self.mamba.sizes)

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        if not b.shape.states:
            return super().attention(b, x)
        return ops.scale(self.mamba.build(b, x), self.residual_scale)
