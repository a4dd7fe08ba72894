"""Multi-head latent attention whose keys and values are expanded for each head, and then stored.

MiniCPM 3 and PLM have it. Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from typing import ClassVar

from ...graph import Tensor, ops
from ..keys import Keys
from .decoder import Decoder
from .layer_build import LayerBuild


class ExpandedMLA(Decoder):
    """arXiv 2405.04434. The last elements of a head are rotated, and their keys are common.

    Attributes:
        query: the name of the matrix of queries.
    """

    query: ClassVar[str] = "attn_q"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.kv_lora_rank = keys.count("attention.kv_lora_rank")
        for layer in self.hp.layers:
            n_head, n_rot = layer.n_head, 0 if layer.rope is None else layer.rope.n_dims
            if layer.n_head_kv != n_head:
                keys.fail("attention.head_count_kv", layer.n_head_kv, f"must be {n_head}, as heads")
            if not 0 < n_rot < layer.head_dim_k:
                keys.fail("rope.dimension_count", n_rot, f"must be 1 to {layer.head_dim_k - 1}")

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        shape, n_rot = b.shape, self.n_rot(b)
        n_head, n_nope = shape.n_head, shape.head_dim_k - n_rot
        latent = b.linear(x, "attn_kv_a_mqa", self.kv_lora_rank + n_rot)
        latent, k_pe = split(latent, self.kv_lora_rank)
        n_kv = n_head * (n_nope + shape.head_dim_v)
        kv = b.linear(b.norm(latent, "attn_kv_a_norm"), "attn_kv_b", n_kv)
        k, v = split(b.heads(kv, n_nope + shape.head_dim_v), n_nope)
        k_pe = self.rope(b, b.heads(k_pe, n_rot), "k_pe")
        k_pe = ops.repeat(k_pe, (n_rot, n_head, x.ne[1]))
        q, q_pe = split(b.heads(self.queries(b, x)), n_nope)
        q = ops.concat(q, self.rope(b, q_pe, "q_pe"), 0)
        return self.project(b, self.attend(b, q, ops.concat(k, k_pe, 0), v))

    def queries(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the queries of all heads, [head_dim_k * n_head, n_tokens]."""
        return b.linear(x, self.query, b.shape.head_dim_k * b.shape.n_head)

    def n_rot(self, b: LayerBuild) -> int:
        """Return the number of a head's elements that are rotated."""
        return 0 if b.shape.rope is None else b.shape.rope.n_dims


def split(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the first n elements of each row of x, and the others."""
    first = ops.view(x, (n, *x.ne[1:]), x.nb)
    second = ops.view(x, (x.ne[0] - n, *x.ne[1:]), x.nb, n * x.nb[0])
    return ops.cont(first), ops.cont(second)
