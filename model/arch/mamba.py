"""mamba: Mamba, Falcon Mamba. No attention and no feed-forward parts: a state space in each layer.

mamba2: Mamba 2, Codestral Mamba. States of heads, one decay for each.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from ..keys import Keys
from .decoder import Decoder
from .layer_build import LayerBuild
from .recurrent import SSM, Mamba1, Mamba2, with_states


class Mamba(Decoder):
    """arXiv 2312.00752, 2410.05355"""

    name = "mamba"
    attends = False
    mixer: Mamba1 | Mamba2

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.mixer = self.read_mixer(keys)
        self.hp = with_states(self.hp, range(self.hp.n_layer), self.mixer.sizes)

    def read_mixer(self, keys: Keys) -> Mamba1 | Mamba2:
        """Return the state space of each layer."""
        norm = None
        if keys.flag("ssm.dt_b_c_rms", False):
            norm = lambda b, x, _: ops.rms_norm(x, b.hp.eps)  # noqa: E731
        return Mamba1(SSM.read(keys, heads=False), norm)

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.mixer.build(b, b.norm(x, "attn_norm")), x)
        return b.add(y, x, "l_out")


class MambaTwo(Mamba):
    """arXiv 2405.21060"""

    name = "mamba2"

    def read_mixer(self, keys: Keys) -> Mamba1 | Mamba2:
        return Mamba2(SSM.read(keys))
