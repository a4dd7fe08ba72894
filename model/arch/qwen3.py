"""qwen3: Qwen 3. The query and key of each head are normalized, and there are no biases.

Tested by tests/model/test_arch_forward.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from ..pooling import Pooling
from .build import GraphBuild
from .decoder import QKNorm


class Qwen3(QKNorm):
    """arXiv 2505.09388"""

    name = "qwen3"

    def head(self, g: GraphBuild, x: Tensor, pooling: Pooling) -> Tensor:
        """Return vectors or probabilities; a reranker's scores are those of "yes" and "no"."""
        y = super().head(g, x, pooling)
        return y if y is x or pooling is not Pooling.RANK else ops.soft_max(y)
