"""granitehybrid: Granite 4.0 H, Bamba. Mamba 2 in most layers, attention in the others.

Tested by tests/model/test_arch_golden.py and test_arch_states.py.
"""

from __future__ import annotations

from ...graph import RopeMode, Tensor, ops
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

    def rope(self, b: LayerBuild, x: Tensor, name: str) -> Tensor:
        """Bamba rotates a part of a head: element i with i + n_dims / 2. Its converter orders the
        elements of whole heads as if all were rotated: i and i + head size / 2 are neighbors."""
        rope = b.shape.rope
        if rope is None or rope.n_dims == x.ne[0]:
            return super().rope(b, x, name)
        pairs = ops.reshape(x, (2, x.ne[0] // 2, x.ne[1] * x.ne[2]))
        halves = ops.cont(ops.permute(pairs, (1, 0, 2, 3)))
        return b.rope(ops.reshape(halves, x.ne), name, RopeMode.NEOX, b.rope_factors())

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        if not b.shape.states:
            return super().attention(b, x)
        return ops.scale(self.mamba.build(b, x), self.residual_scale)
