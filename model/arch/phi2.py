"""phi2: Phi-1 to Phi-2. Attention and feed-forward part share a LayerNorm; all have biases.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from .build import Norm
from .decoder import Parallel
from .layer_build import LayerBuild
from .weights import Bias


class Phi2(Parallel):
    """arXiv 2309.05463"""

    name = "phi2"
    norm = Norm.LAYER
    bias = Bias.REQUIRED
    output_bias = Bias.REQUIRED

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, ops.gelu, self.bias)
