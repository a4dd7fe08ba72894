"""bloom: BLOOM. ALiBi, a norm of the embeddings, biases everywhere, no gate.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from .build import GraphBuild, Norm
from .decoder import ALiBi
from .layer_build import LayerBuild
from .weights import Bias


class Bloom(ALiBi):
    """arXiv 2211.05100"""

    name = "bloom"
    norm = Norm.LAYER
    qkv_bias = Bias.REQUIRED
    bias = Bias.REQUIRED

    def embed(self, g: GraphBuild) -> Tensor:
        return g.norm(g.embed(), "token_embd_norm", None)

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, ops.gelu, self.bias)
