"""Decoders: what many architectures have in common.

`Decoder` is llama's. The others are structures with several relatives: norms of heads, norms after
each part, attention and feed-forward side by side. An architecture extends the nearest one, and
replaces the methods in which it differs. Knows no files.
Tested by tests/model/test_arch_forward.py and test_arch_golden.py.
"""

from __future__ import annotations

from typing import ClassVar

from ...graph import Op, RopeMode, Tensor, ops
from ...graph.op import UnaryOp
from ..keys import Keys
from .base import Architecture
from .build import Gated, GraphBuild
from .experts import Experts, Gating, Router, read_experts
from .layer_build import LayerBuild
from .weights import Bias


class Decoder(Architecture):
    """Norm, attention, norm, feed-forward: Llama (arXiv 2302.13971) and its relatives.

    Attributes:
        rope_mode: the pairs of elements that are rotated.
        qkv_bias: of queries, keys and values. By default, a file may have biases.
        bias: of the attention's output and of the feed-forward matrices.
        output_bias: of the output matrix.
        ffn_norm: the tensor of the norm before the feed-forward part.
        act: of gate and up in the feed-forward part.
        experts: the experts in place of some layers' feed-forward parts; None: there are none.
        scale: the factor of attention's scores; None: 1 / sqrt(head size).
    """

    rope_mode: RopeMode = RopeMode.NEOX
    qkv_bias: ClassVar[Bias] = Bias.OPTIONAL
    bias: ClassVar[Bias] = Bias.OPTIONAL
    output_bias: ClassVar[Bias] = Bias.NONE
    ffn_norm: ClassVar[str] = "ffn_norm"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.act: Gated = ops.swiglu
        self.scale: float | None = None
        self.experts = Experts(Router()) if self.hp.n_expert else None

    def forward(self, g: GraphBuild) -> Tensor:
        x = self.embed(g)
        for il in range(self.hp.n_layer):
            x = g.steered(self.layer(LayerBuild.of(g, il), x), il)
        return self.logits(g, x)

    def embed(self, g: GraphBuild) -> Tensor:
        """Return the first layer's input, [n_embd, n_tokens]."""
        return g.embed()

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return a layer's output of its input x. The last layer's has the outputs' rows only."""
        y, x = b.outputs(self.attention(b, self.attn_norm(b, x)), x)
        x = b.add(y, x, "ffn_inp")
        return b.add(self.ffn(b, b.norm(x, self.ffn_norm)), x, "l_out")

    def attn_norm(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return attention's input of a layer's input x [n_embd, n_tokens]."""
        return b.norm(x, "attn_norm")

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the attention of a layer's tokens x [n_embd, n_tokens], projected."""
        q, k, v = self.qkv(b, x)
        q, k = self.rotated(b, q, k)
        return self.project(b, self.attend(b, q, k, v))

    def qkv(self, b: LayerBuild, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of x, rows of [n, n_tokens]."""
        return b.qkv(x, self.qkv_bias)

    def rotated(self, b: LayerBuild, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys [head_dim, n_head, n_tokens] of rows [n, n_tokens]."""
        return self.rope(b, b.heads(q), "Qcur"), self.rope(b, b.heads(k), "Kcur")

    def rope(self, b: LayerBuild, x: Tensor, name: str) -> Tensor:
        """Return heads x with their positions. Files may have factors of frequencies."""
        return b.rope(x, name, self.rope_mode, b.rope_factors())

    def attend(self, b: LayerBuild, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the weighted values, [head_dim_v * n_head, n_tokens]."""
        return b.attend(q, k, v, scale=self.scale)

    def project(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the product of attention's result with its output matrix, [n_embd, n_tokens]."""
        return b.named(b.linear(x, "attn_output", self.hp.n_embd, self.bias), "attn_out")

    def ffn(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the feed-forward part of x [n_embd, n_tokens]."""
        if self.experts is not None and self.experts.are_in(b.il):
            return self.experts.build(b, x)
        return self.dense(b, x)

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the feed-forward part of a layer without experts."""
        return b.gated(x, b.shape.n_ff, self.act, self.bias)

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        """Return the logits [n_vocab, n_outputs] of the last layer's x [n_embd, n_outputs]."""
        return g.output(self.output_norm(g, x), self.output_bias)

    def output_norm(self, g: GraphBuild, x: Tensor) -> Tensor:
        """Return the norm of the last layer's output x, [n_embd, n_outputs]."""
        return g.output_norm(x)


class QKNorm(Decoder):
    """A decoder that normalizes each head's queries and keys before their rotation."""

    def rotated(self, b: LayerBuild, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = b.norm(b.heads(q), "attn_q_norm"), b.norm(b.heads(k), "attn_k_norm")
        return self.rope(b, q, "Qcur"), self.rope(b, k, "Kcur")


class QKNormOfEachHead(Decoder):
    """A decoder that normalizes each head's queries and keys with weights of that head.

    Files may lack these norms.
    """

    def rotated(self, b: LayerBuild, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = b.heads(q), b.heads(k)
        q = b.norm(q, "attn_q_norm", ne=q.ne[:2], optional=True)
        k = b.norm(k, "attn_k_norm", ne=k.ne[:2], optional=True)
        return self.rope(b, q, "Qcur"), self.rope(b, k, "Kcur")


class WideQKNorm(Decoder):
    """A decoder that normalizes the queries and the keys of all heads together."""

    def rotated(self, b: LayerBuild, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return super().rotated(b, b.norm(q, "attn_q_norm"), b.norm(k, "attn_k_norm"))


class SandwichNorms(Decoder):
    """A decoder with norms before and after each part."""

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.attention(b, b.norm(x, "attn_norm")), x)
        x = b.add(self.post_norm(b, y, "post_attention_norm"), x, "ffn_inp")
        y = self.ffn(b, b.norm(x, "ffn_norm"))
        return b.add(self.post_norm(b, y, "post_ffw_norm"), x, "l_out")

    def post_norm(self, b: LayerBuild, y: Tensor, name: str) -> Tensor:
        """Return the norm of a part's result y [n_embd, n_tokens]. `name` is its tensor's."""
        return b.norm(y, name)


class PostNorms(Decoder):
    """A decoder with norms after each part, and none before."""

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.attention(b, x), x)
        x = b.add(b.norm(y, "post_attention_norm"), x, "ffn_inp")
        return b.add(b.norm(self.ffn(b, x), "post_ffw_norm"), x, "l_out")


class Parallel(Decoder):
    """A decoder whose attention and feed-forward parts have the same input."""

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        n = b.norm(x, "attn_norm")
        y, n, x = b.outputs(self.attention(b, n), n, x)
        return b.add(b.add(y, self.ffn(b, n), "ffn_inp"), x, "l_out")


class NormsWithoutWeights(Decoder):
    """A decoder whose norms before each part, and before the output, have no weights."""

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.attention(b, b.g.normed(x)), x)
        x = b.add(y, x, "ffn_inp")
        return b.add(self.ffn(b, b.g.normed(x)), x, "l_out")

    def output_norm(self, g: GraphBuild, x: Tensor) -> Tensor:
        return g.normed(x)


class ClampedQKV(Decoder):
    """A decoder that limits queries, keys and values to -clamp .. clamp; 0: no limit."""

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.clamp = keys.factor("attention.clamp_kqv", 0.0)

    def qkv(self, b: LayerBuild, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().qkv(b, x)
        if not self.clamp:
            return q, k, v
        q, k, v = (ops.clamp(y, -self.clamp, self.clamp) for y in (q, k, v))
        return q, k, v


class ALiBi(Decoder):
    """A decoder without rotation, whose scores fall with the distance (arXiv 2108.12409).

    Attributes:
        max_bias: the exponents of the heads' slopes are multiples of it.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.max_bias = 8.0
        self.hp = self.hp.with_rope_in(())

    def attend(self, b: LayerBuild, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return b.attend(q, k, v, scale=self.scale, max_bias=self.max_bias)


class GatedAttention(Decoder):
    """A decoder that multiplies attention's result by gates of its input (arXiv 2505.06708).

    Attributes:
        gate_act: the activation of gates.
        gate_per_head: each head has one gate; otherwise, each of its elements.
    """

    gate_act: ClassVar[UnaryOp] = UnaryOp.SIGMOID
    gate_per_head: bool = False

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        q, k, v = self.qkv(b, x)
        q, k = self.rotated(b, q, k)
        return self.project(b, self.gate(b, x, self.attend(b, q, k, v)))

    def gate(self, b: LayerBuild, x: Tensor, y: Tensor) -> Tensor:
        """Return y [head_dim_v * n_head, n_tokens] times the gates of x [n_embd, n_tokens]."""
        n_gates = b.shape.n_head if self.gate_per_head else y.ne[0]
        gates = ops.unary(b.linear(x, "attn_gate", n_gates), self.gate_act)
        if not self.gate_per_head:
            return ops.mul(y, gates)
        heads = b.heads(y, b.shape.head_dim_v)
        return ops.reshape(ops.mul(heads, ops.reshape(gates, (1, *gates.ne[:2]))), y.ne)


class Sinks(Decoder):
    """A decoder with a score per head that joins the softmax's denominator (arXiv 2309.17453)."""

    def attend(self, b: LayerBuild, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sinks = b.required("attn_sinks.weight", (b.shape.n_head,), Op.FLASH_ATTN_EXT)
        return b.attend(q, k, v, scale=self.scale, sinks=sinks)


class SigmoidExperts(Decoder):
    """A decoder with experts as in DeepSeek-V3 (arXiv 2412.19437).

    Their scores are sigmoids, and a bias takes part in their choice. Files may have a dense part in
    the first layers, and an expert that all tokens use.
    """

    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.experts: Experts = read_experts(keys, self.hp, Gating.SIGMOID)
