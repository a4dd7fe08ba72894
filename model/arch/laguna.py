"""laguna: Poolside Laguna. Gated attention, heads that differ by layer, windows and experts.

The gate has a factor for each head or for each element; its tensor tells. YaRN is in layers without
a window only. Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from ...graph.op import UnaryOp
from ..hparams import Rope, with_windows
from ..keys import Keys
from .build import LayerBuild
from .decoder import GatedAttention, QKNorm
from .experts import Gating, read_experts


class Laguna(GatedAttention, QKNorm):
    """https://huggingface.co/poolside"""

    name = "laguna"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=4, full_first=True, rope=Rope.plain)
        self.experts = read_experts(keys, self.hp, Gating.SIGMOID)
        gate = keys.file.tensors.get("blk.0.attn_gate.weight")
        self.gate_per_head = gate is None or gate.ne[1] == self.hp.layers[0].n_head

    def gate(self, b: LayerBuild, x: Tensor, y: Tensor) -> Tensor:
        n = b.shape.n_head if self.gate_per_head else y.ne[0]
        factors = ops.unary(b.linear(x, "attn_gate", n), UnaryOp.SOFTPLUS)
        heads = ops.reshape(y, (y.ne[0] // n, n, y.ne[1]))
        gated = ops.mul(heads, ops.reshape(factors, (1, n, y.ne[1])))
        return ops.reshape(gated, y.ne)
