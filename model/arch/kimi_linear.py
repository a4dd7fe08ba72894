"""kimi-linear: Kimi Linear. Kimi Delta Attention in most layers, latent attention without positions
in the others; experts.

Tested by tests/model/test_arch_states.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...graph import Op, Tensor, ops
from ...graph.op import UnaryOp
from ..keys import Keys
from .experts import Experts, Gating, read_experts
from .layer_build import LayerBuild
from .mla import MLA
from .recurrent import convolved, over_l2_norm, with_states, without_attention


@dataclass(frozen=True, slots=True)
class KDA:
    """A gated delta net with a decay for each element of a key (arXiv 2510.26692).

    Attributes:
        n_head, head_dim: heads of queries, keys and values, and their elements.
        n_conv: the width of the convolutions, in tokens.
    """

    n_head: int
    head_dim: int
    n_conv: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The elements of a layer's states: three convolutions, and the matrices."""
        n = self.n_head * self.head_dim
        return (*((self.n_conv - 1) * n,) * 3, n * self.head_dim)

    def build(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the mixed tokens of x [n_embd, n_tokens]."""
        q, k, v = (self._convolved(b, x, i) for i in range(3))
        q, k = over_l2_norm(q, k)
        beta = ops.unary(b.linear(x, "ssm_beta", self.n_head), UnaryOp.SIGMOID)
        y = ops.gated_delta_net(
            q, k, v, self._decays(b, x), beta, b.states[3], b.slots, interleaved=False
        )
        y = b.norm(b.named(y, "kda"), "ssm_norm")
        gate = ops.unary(b.heads(self._low_rank(b, x, "ssm_g"), self.head_dim), UnaryOp.SIGMOID)
        y = ops.reshape(ops.mul(y, gate), (self.n_head * self.head_dim, x.ne[1]))
        return b.named(b.linear(y, "attn_output", b.hp.n_embd), "attn_out")

    def _convolved(self, b: LayerBuild, x: Tensor, i: int) -> Tensor:
        """Return the queries (0), keys (1) or values (2) of x, [head_dim, n_head, n_tokens]."""
        kind = "qkv"[i]
        y = b.linear(x, f"attn_{kind}", self.n_head * self.head_dim)
        y = convolved(b, y, f"ssm_conv1d_{kind}", self.n_conv, state=i)
        return b.heads(ops.silu(y), self.head_dim)

    def _decays(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the logarithms of the decays of x, [head_dim, n_head, n_tokens]."""
        y = self._low_rank(b, x, "ssm_f")
        y = ops.add(y, b.required("ssm_dt.bias", (y.ne[0],), Op.ADD))
        y = b.heads(ops.unary(y, UnaryOp.SOFTPLUS), self.head_dim)
        return b.named(ops.mul(y, b.required("ssm_a", (1, self.n_head), Op.MUL)), "kda_decay")

    def _low_rank(self, b: LayerBuild, x: Tensor, name: str) -> Tensor:
        y = b.linear(x, f"{name}_a", self.head_dim)
        return b.linear(y, f"{name}_b", self.n_head * self.head_dim)


class KimiLinear(MLA):
    """arXiv 2510.26692

    Attributes:
        kda: the mixer of layers without heads of keys.
    """

    name = "kimi-linear"
    needs_experts = True
    lacks_parts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.experts: Experts = read_experts(keys, self.hp, Gating.SIGMOID, renorm=True)
        self.scale = 1.0 / math.sqrt(self.head_dim)

    def check(self, keys: Keys) -> None:
        self.require_absorbed(keys)
        self.kda = KDA(
            keys.count("attention.head_count"),
            keys.count("kda.head_dim"),
            keys.count("ssm.conv_kernel", low=2),
        )
        layers = [il for il, layer in enumerate(self.hp.layers) if not layer.n_head_kv]
        # files have another size of values, which the model does not use
        self.hp = without_attention(self.hp, layers).with_layers(
            lambda _, layer: replace(layer, head_dim_v=self.kv_lora_rank)
        )
        super().check(keys)
        self.hp = with_states(self.hp.with_rope_in(()), layers, self.kda.sizes)

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        return self.kda.build(b, x) if b.shape.states else super().attention(b, x)
