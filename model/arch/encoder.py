"""Encoders: each token sees the whole text, and the result is a row for each token.

`Encoder` has norms before each part, `PostNormEncoder` after it. Knows no files and no pooling.
Tested by tests/model/test_arch_embeddings.py.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph import Tensor, ops
from ..keys import Keys
from .build import GraphBuild, Norm
from .decoder import Decoder
from .layer_build import LayerBuild


class Encoder(Decoder):
    """A decoder whose tokens also see later ones, without an output matrix."""

    has_output = False

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = replace(self.hp, causal=keys.flag("attention.causal", False))

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        return self.output_norm(g, x)

    def ignores(self, tensor: str) -> bool:
        return tensor == "output.weight" or super().ignores(tensor)


class PostNormEncoder(Encoder):
    """Attention, norm, feed-forward, norm: BERT (arXiv 1810.04805) and its relatives.

    Attributes:
        n_token_types: rows of the table of token types. All tokens have the first type.
        is_gated: the feed-forward part has a gate.
    """

    norm = Norm.LAYER

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.n_token_types = keys.metadata.int("tokenizer.ggml.token_type_count", 1) or 1
        self.is_gated = False

    def embed(self, g: GraphBuild) -> Tensor:
        return g.norm(self.embeddings(g), "token_embd_norm", 0)

    def embeddings(self, g: GraphBuild) -> Tensor:
        """Return the sum of all embeddings of the tokens, [n_embd, n_tokens]."""
        return g.add_token_type(g.embed(), self.n_token_types)

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        y, x = b.outputs(self.attention(b, x), x)
        x = self.attended(b, y, x)
        return b.norm(b.add(self.ffn(b, x), x, "ffn_residual"), "layer_output_norm")

    def attended(self, b: LayerBuild, y: Tensor, x: Tensor) -> Tensor:
        """Return the feed-forward part's input of attention's result y and the layer's input x."""
        return b.norm(b.add(y, x, "attn_residual"), "attn_output_norm")

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        if self.is_gated:
            return super().dense(b, x)
        return b.mlp(x, b.shape.n_ff, ops.gelu_erf, self.bias)

    def output_norm(self, g: GraphBuild, x: Tensor) -> Tensor:
        return x
