"""neo-bert: NeoBERT. A llama whose tokens see later ones.

Tested by tests/model/test_arch_embeddings.py.
"""

from __future__ import annotations

from ...graph import RopeMode, Tensor
from .build import GraphBuild
from .encoder import Encoder


class NeoBert(Encoder):
    """arXiv 2502.19587"""

    name = "neo-bert"
    rope_mode = RopeMode.NORMAL

    def output_norm(self, g: GraphBuild, x: Tensor) -> Tensor:
        return g.norm(x, "enc.output_norm", self.hp.n_layer).named("result_norm")
