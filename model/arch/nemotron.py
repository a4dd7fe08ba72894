"""nemotron: Nemotron 4, Minitron, and Jais 2. LayerNorm, partial rotation, squared ReLU.

The files' norm weights contain the model's + 1. jais2: Jais 2 has biases everywhere.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from .build import LayerBuild, Norm, relu_sqr
from .decoder import Decoder


class Nemotron(Decoder):
    """arXiv 2402.16819, 2407.14679."""

    name = "nemotron"
    norm = Norm.LAYER

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, relu_sqr, self.bias)


class Jais2(Nemotron):
    """huggingface.co/inceptionai/Jais-2-8B-Chat."""

    name = "jais2"
