"""jamba: Jamba 1.5 to 1.7. Mamba in most layers, attention without positions in few; some experts.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from ..keys import Keys
from .decoder import Decoder
from .experts import read_experts
from .layer_build import LayerBuild
from .recurrent import SSM, Mamba1, with_states, without_attention


class Jamba(Decoder):
    """arXiv 2403.19887

    Attributes:
        with_experts: the layers with experts: those whose files have a router.
    """

    name = "jamba"
    lacks_parts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.mamba = Mamba1(SSM.read(keys, heads=False), LayerBuild.norm)
        layers = [il for il, layer in enumerate(self.hp.layers) if not layer.n_head_kv]
        self.hp = without_attention(self.hp, layers).with_rope_in(())
        self.hp = with_states(self.hp, layers, self.mamba.sizes)
        names = (f"blk.{il}.ffn_gate_inp.weight" for il in range(self.hp.n_layer))
        self.with_experts = {il for il, name in enumerate(names) if name in keys.file.tensors}
        if self.hp.n_expert:
            self.experts = read_experts(keys, self.hp)

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        return self.mamba.build(b, x) if b.shape.states else super().attention(b, x)

    def ffn(self, b: LayerBuild, x: Tensor) -> Tensor:
        return super().ffn(b, x) if b.il in self.with_experts else self.dense(b, x)
