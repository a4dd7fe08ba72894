"""mpt: MPT. ALiBi or learned positions, limited queries, keys and values, no gate.

Biases, and norms of queries and keys, are optional.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from ..keys import Keys
from .build import GraphBuild, Norm
from .decoder import ALiBi, ClampedQKV
from .layer_build import LayerBuild


class MPT(ALiBi, ClampedQKV):
    """https://www.databricks.com/blog/mpt-7b"""

    name = "mpt"
    norm = Norm.LAYER

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.max_bias = keys.factor("attention.max_alibi_bias", 0.0)
        self.has_positions = "position_embd.weight" in keys.file.tensors

    def embed(self, g: GraphBuild) -> Tensor:
        return g.add_positions(g.embed(), optional=True)

    def rotated(self, b: LayerBuild, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = b.norm(q, "attn_q_norm", optional=True)
        return b.heads(q), b.heads(b.norm(k, "attn_k_norm", optional=True))

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, ops.gelu_erf, self.bias)

    def max_ctx(self) -> int | None:
        return self.hp.n_ctx_train if self.has_positions else None
