"""plm: PLM 1.8B. Latent attention, and down(relu(up(x)) ** 2).

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode, Tensor
from .build import relu_sqr
from .layer_build import LayerBuild
from .mla import ExpandedMLA


class PLM(ExpandedMLA):
    """arXiv 2503.12167"""

    name = "plm"
    rope_mode = RopeMode.NORMAL

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, relu_sqr)
