"""gemma3n: Gemma 3n. Four streams (AltUp), of which a layer computes one and corrects the others.

A layer also has a low-rank path (LAuReL), and a sparse activation. Streams are one tensor,
[n_embd, n_stream, n_tokens]. Formulas are those of transformers' modeling_gemma3n.py, which divides
the variance of the sparse activation by n; llama.cpp divides it by n - 1.
Tested by tests/model/test_arch_golden.py and test_arch_gemma3n.py.
"""

from __future__ import annotations

import math
from typing import Final

from ...graph import Op, Tensor, ops
from ...graph.op import UnaryOp
from ..keys import Keys
from .build import GraphBuild
from .layer_build import LayerBuild
from .per_layer import PerLayer

MAX_STREAMS: Final = 64  # a file with more is broken; models have 4
LEAST_SQUARE: Final = 1e-5  # of a stream's elements, on average
SPARSITY: Final = 1.6448536  # of the first ten layers of files without the key: 95% are 0


class Gemma3n(PerLayer):
    """https://ai.google.dev/gemma/docs/gemma-3n

    AltUp: arXiv 2301.13310. LAuReL: arXiv 2411.07501.

    Attributes:
        n_stream: the number of streams; `active` is the one that layers compute.
        n_rank: the rank of the low-rank path.
        cutoffs: for each layer, the standard deviations above the mean below which gates are 0.
    """

    name = "gemma3n"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        n_layer = self.hp.n_layer
        self.read_layers(keys, period=5, n_shared=max(n_layer - 20, 0), n_input=256)
        self.n_stream = keys.count("altup.num_inputs", 4, low=2, high=MAX_STREAMS)
        self.active = keys.count("altup.active_idx", 0, low=0, high=self.n_stream - 1)
        down = keys.file.tensors.get("blk.0.laurel_l.weight")
        self.n_rank = down.ne[-1] if down is not None else 64
        key = "activation_sparsity_scale"
        self.cutoffs = tuple(SPARSITY if il < 10 else -math.inf for il in range(n_layer))
        if key in keys:
            self.cutoffs = keys.numbers(key, n_layer, infinite=True)

    def forward(self, g: GraphBuild) -> Tensor:
        x = self.embed(g)
        inputs = self.inputs(g, x)
        streams = self.split(g, x)
        for il in range(self.hp.n_layer):
            b = LayerBuild.of(g, il)
            streams = g.steered(self.step(b, streams, self.input_of(b, inputs)), il)
        return self.logits(g, self.merged(g, streams))

    def step(self, b: LayerBuild, streams: Tensor, own: Tensor) -> Tensor:
        """Return a layer's output streams; the last layer's have the outputs' rows only."""
        predicted = self.predicted(b, streams)
        x = b.norm(self.stream(predicted), "attn_norm")
        laurel = b.linear(b.linear(x, "laurel_l", self.n_rank), "laurel_r", self.hp.n_embd)
        laurel = ops.add(b.norm(laurel, "laurel_post_norm"), x)
        flat = ops.reshape(predicted, (self.hp.n_embd * self.n_stream, predicted.ne[2]))
        y, laurel, flat = b.outputs(self.attention(b, x), laurel, flat)
        predicted = ops.reshape(flat, (self.hp.n_embd, self.n_stream, flat.ne[1]))
        y = ops.add(b.norm(y, "post_attention_norm"), self.stream(predicted))
        x = b.named(ops.scale(ops.add(y, laurel), 2**-0.5), "attn_laurel")
        x = ops.add(b.norm(self.dense(b, b.norm(x, "ffn_norm")), "post_ffw_norm"), x)
        streams = self.corrected(b, predicted, x)
        x = ops.mul(self.stream(streams), b.required("altup_correct_scale.weight", x.ne[:1]))
        return self.with_input(b, streams, self.gated_input(b, x, own))

    def with_input(self, b: LayerBuild, streams: Tensor, x: Tensor) -> Tensor:
        """Return the streams, with x added to all but the first."""
        ne, nb = streams.ne, streams.nb
        first = ops.view(streams, (ne[0], 1, ne[2]), nb)
        others = ops.view(streams, (ne[0], ne[1] - 1, ne[2]), nb, offset=nb[1])
        others = ops.add(others, ops.reshape(x, (ne[0], 1, ne[2])))
        return b.named(ops.concat(first, others, dim=1), "l_out")

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        cutoff = self.cutoffs[b.il]

        def sparse_geglu(gate: Tensor, up: Tensor) -> Tensor:
            return ops.geglu(above(gate, cutoff), up)

        act = ops.geglu if cutoff == -math.inf else sparse_geglu
        return b.gated(x, b.shape.n_ff, act)

    # --- streams ---

    def stream(self, streams: Tensor, i: int | None = None) -> Tensor:
        """Return one stream, by default the active one: [n_embd, n_tokens]."""
        ne, nb = streams.ne, streams.nb
        at = self.active if i is None else i
        return ops.view(streams, (ne[0], ne[2]), (nb[0], nb[2]), at * nb[1])

    def modalities(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the state of the router between streams, [n_stream, n_tokens]."""
        x = ops.scale(b.norm(x, "altup_router_norm"), 1 / self.hp.n_embd)
        return ops.unary(b.linear(x, "altup_router", self.n_stream), UnaryOp.TANH)

    def predicted(self, b: LayerBuild, streams: Tensor) -> Tensor:
        """Return the streams plus products with a matrix [n_stream, n_stream] for each token."""
        n = self.n_stream
        coefs = b.linear(self.modalities(b, self.stream(streams)), "altup_predict_coef", n * n)
        matrix = ops.reshape(coefs, (n, n, coefs.ne[1]))
        mixed = ops.mul_mat(ops.cont(ops.transpose(streams)), matrix)
        return b.add(mixed, streams, "predictions")

    def corrected(self, b: LayerBuild, predicted: Tensor, x: Tensor) -> Tensor:
        """Return the predictions, with a share for each of what x has beyond the active one."""
        n, n_tokens = self.n_stream, x.ne[1]
        coefs = ops.scale(b.linear(self.modalities(b, x), "altup_correct_coef", n), 1.0, 1.0)
        beyond = ops.sub(x, self.stream(predicted))
        beyond = ops.repeat(ops.reshape(beyond, (x.ne[0], 1, n_tokens)), predicted.ne)
        return b.add(ops.mul(beyond, ops.reshape(coefs, (1, n, n_tokens))), predicted, "corrected")

    def split(self, g: GraphBuild, x: Tensor) -> Tensor:
        """Return the streams of an embedding x: x, and its projections of equal magnitude."""
        rows = ops.repeat(ops.reshape(x, (*x.ne[:2], 1)), (*x.ne[:2], self.n_stream - 1))
        others = self.projected(g, "altup_proj", rows, like=x, layer=0)
        return ops.concat(ops.reshape(x, (x.ne[0], 1, x.ne[1])), others, dim=1)

    def merged(self, g: GraphBuild, streams: Tensor) -> Tensor:
        """Return the mean of the first stream and of the others' projections."""
        first = ops.cont(self.stream(streams, 0))
        ne, nb = streams.ne, streams.nb
        others = ops.view(streams, (ne[0], ne[1] - 1, ne[2]), nb, offset=nb[1])
        rows = ops.cont(ops.permute(others, (0, 2, 1, 3)))
        others = self.projected(g, "altup_unembd_proj", rows, like=first, layer=self.hp.n_layer)
        total = first
        for i in range(self.n_stream - 1):
            total = ops.add(total, self.stream(others, i))
        return ops.scale(total, 1 / self.n_stream)

    def projected(self, g: GraphBuild, name: str, x: Tensor, like: Tensor, layer: int) -> Tensor:
        """Return projections of x [n_embd, n_tokens, n], each with the magnitude of `like`.

        The result is [n_embd, n, n_tokens].
        """
        ne = (x.ne[0], x.ne[0], x.ne[2])
        y = ops.mul_mat(g.required(f"{name}.weight", ne, layer, Op.MUL_MAT), x)
        least = ops.clamp(mean(ops.sqr(y)), LEAST_SQUARE, math.inf)
        ratio = ops.div(ops.repeat(ops.sqrt(mean(ops.sqr(like))), (1, *x.ne[1:3])), ops.sqrt(least))
        return ops.cont(ops.permute(ops.mul(y, ratio), (0, 2, 1, 3)))


def mean(x: Tensor) -> Tensor:
    """Return the mean of each row of x, [1, ...]."""
    return ops.scale(ops.sum_rows(x), 1 / x.ne[0])


def above(x: Tensor, cutoff: float) -> Tensor:
    """Return what x has above the mean of its row plus `cutoff` standard deviations, at least 0."""
    center = mean(x)
    deviation = ops.sqrt(mean(ops.sqr(ops.sub(x, center))))
    return ops.relu(ops.sub(x, ops.add(center, ops.scale(deviation, cutoff))))
