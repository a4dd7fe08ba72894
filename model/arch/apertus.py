"""apertus: Apertus. A feed-forward part without gate: down(xIELU(up(x))).

Each layer's xIELU has its own numbers, in keys without the architecture's prefix.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from math import exp, log1p

from ...graph import Tensor, ops
from ..keys import Keys
from .decoder import QKNorm
from .layer_build import LayerBuild


class Apertus(QKNorm):
    """arXiv 2509.14233, 2411.13010"""

    name = "apertus"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        xielu, n = Keys(keys.file, "xielu"), self.hp.n_layer
        self.beta, self.eps = xielu.numbers("beta", n), xielu.numbers("eps", n)
        alphas_n, self.alpha_p = xielu.numbers("alpha_n", n), xielu.numbers("alpha_p", n)
        self.alpha_p = tuple(map(softplus, self.alpha_p))
        self.alpha_n = tuple(b + softplus(a) for b, a in zip(self.beta, alphas_n, strict=True))

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        def xielu(up: Tensor) -> Tensor:
            il = b.il
            return ops.xielu(up, self.alpha_n[il], self.alpha_p[il], self.beta[il], self.eps[il])

        return b.mlp(x, b.shape.n_ff, xielu, self.bias)


def softplus(x: float) -> float:
    """Return ln(1 + e ** x)."""
    return max(x, 0.0) + log1p(exp(-abs(x)))
