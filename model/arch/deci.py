"""deci: DeciLM, Llama Nemotron. A llama that was pruned: layers may lack attention, or more.

A layer without heads has no attention. One without heads of keys has a matrix in its place. A
width of 0 means that it has no feed-forward part.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from .layer_build import LayerBuild
from .llama import Llama


class Deci(Llama):
    """arXiv 2411.19146"""

    name = "deci"
    lacks_parts = True

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        if b.shape.n_head:
            n = b.norm(x, "attn_norm")
            y = self.attention(b, n) if b.shape.n_head_kv else self.project(b, n)
            y, x = b.outputs(y, x)
            x = b.add(y, x, "ffn_inp")
        else:
            (x,) = b.outputs(x)
        if not b.shape.n_ff:
            return x
        return b.add(self.ffn(b, b.norm(x, self.ffn_norm)), x, "l_out")
