"""phimoe: Phi-3.5-MoE and Phi-mini-MoE. Phi-3 with LayerNorms, biases and SparseMixer's experts.

Formulas are those of transformers' modeling_phimoe.py. llama.cpp divides the softmax's two best
probabilities by their sum instead. Tested by tests/model/test_arch_phimoe.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ...graph import Tensor, ops
from ...graph.op import UnaryOp
from ..keys import Keys
from .build import Norm
from .experts import Experts, Router
from .layer_build import LayerBuild
from .phi3 import Phi3
from .weights import Bias

NEAR: Final = 0.02  # twice the router's jitter in training; no key of a file has it
STEP: Final = 1e30  # so large that a clamped product is 0 or 1


class PhiMoE(Phi3):
    """arXiv 2404.14219"""

    name = "phimoe"
    needs_experts = True
    output_bias = Bias.OPTIONAL

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        if self.hp.n_expert_used != 2:
            keys.fail("expert_used_count", self.hp.n_expert_used, "must be 2")
        self.norm = Norm.LAYER  # files have its epsilon under the key of RMS norms
        self.experts = Experts(SparseMixer())


@dataclass(frozen=True, slots=True)
class SparseMixer(Router):
    """The choice of two experts, one after the other (arXiv 2409.12136).

    The weight of each is its share of a softmax over the experts that are nearly as good. Those
    before it are left out.
    """

    def route(self, b: LayerBuild, x: Tensor) -> tuple[Tensor, Tensor]:
        n_expert, n_tokens = b.hp.n_expert, x.ne[1]
        scores = b.linear(x, "ffn_gate_inp", n_expert)
        chosen = ops.argsort_top_k(scores, 2)
        table = ops.reshape(scores, (1, n_expert, n_tokens))
        best = ops.get_rows(table, chosen)  # [1, 2, n_tokens]
        first, second = (_one_of_two(best, i) for i in range(2))
        at_first = ops.cont(ops.view(chosen, (1, n_tokens), chosen.nb))
        gone = ops.reshape(ops.fill(first, -math.inf), (1, 1, n_tokens))
        rest = ops.reshape(ops.set_rows(ops.cont(table), gone, at_first), scores.ne)
        weights = ops.concat(share(scores, scores, first), share(rest, scores, second), dim=0)
        return chosen, b.named(ops.reshape(weights, (1, 2, n_tokens)), "ffn_moe_weights")


def share(candidates: Tensor, scores: Tensor, best: Tensor) -> Tensor:
    """Return the weight of the experts with the scores `best`, [1, n_tokens].

    An expert counts if (best - score) / max(|score|, best) is at most NEAR. `candidates` are the
    scores, with minus infinity for experts that do not count.
    """
    size = ops.relu(ops.sub(ops.unary(scores, UnaryOp.ABS), best))  # max(|score|, best) - best
    slack = ops.add(ops.scale(ops.add(size, best), NEAR), ops.sub(scores, best))
    is_near = ops.clamp(ops.scale(slack, STEP, 1.0), 0.0, 1.0)
    total = ops.sum_rows(ops.mul(is_near, ops.unary(ops.sub(candidates, best), UnaryOp.EXP)))
    return ops.div(ops.fill(total, 1.0), total)


def _one_of_two(x: Tensor, i: int) -> Tensor:
    """Return row i of x [1, 2, n_tokens], as [1, n_tokens]."""
    return ops.cont(ops.view(x, (1, x.ne[2]), (x.nb[0], x.nb[2]), i * x.nb[1]))
