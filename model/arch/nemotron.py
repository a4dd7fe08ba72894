"""nemotron: Nemotron 4, Minitron. LayerNorm, part of each head rotated, squared ReLU, no gate.

The files' norm weights contain the model's + 1.
jais2: Jais 2. The same structure.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from .build import Norm, relu_sqr
from .decoder import Decoder
from .layer_build import LayerBuild


class Nemotron(Decoder):
    """arXiv 2402.16819, 2407.14679"""

    name = "nemotron"
    norm = Norm.LAYER

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, relu_sqr, self.bias)


class Jais2(Nemotron):
    """https://huggingface.co/inceptionai/Jais-2-8B-Chat"""

    name = "jais2"
