"""arcee: AFM 4.5B. A feed-forward part without gate: down(relu(up(x)) ** 2).

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from .build import relu_sqr
from .layer_build import LayerBuild
from .llama import Llama


class Arcee(Llama):
    """https://huggingface.co/arcee-ai/AFM-4.5B"""

    name = "arcee"

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, relu_sqr, self.bias)
