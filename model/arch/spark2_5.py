"""spark2_5: Spark 2.5. A gate for each head, and windows with their own rope.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from ...graph.op import GluOp, UnaryOp
from ..hparams import with_windows
from ..keys import Keys
from .build import LayerBuild
from .decoder import GatedAttention


class Spark25(GatedAttention):
    """github.com/iflytek; gated attention: arXiv 2505.06708."""

    name = "spark2_5"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.act = geglu_erf
        self.hp = with_windows(keys, self.hp)

    def gate(self, b: LayerBuild, x: Tensor, y: Tensor) -> Tensor:
        gates = ops.unary(b.linear(x, "attn_gate", b.shape.n_head), UnaryOp.SIGMOID)
        heads = b.heads(y, b.shape.head_dim_v)
        return ops.reshape(ops.mul(heads, ops.reshape(gates, (1, *gates.ne[:2]))), y.ne)


def geglu_erf(gate: Tensor, up: Tensor) -> Tensor:
    """Return GELU(gate) * up."""
    return ops.glu(gate, up, GluOp.GEGLU_ERF)
