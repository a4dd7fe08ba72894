"""The interface of an architecture, and the decoder shared by llama and its relatives.

Knows no devices and no memory. Tested by tests/model/test_arch_forward.py and
tests/model/test_arch_weights.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from ...graph import RopeMode, Tensor, ops
from ..gguf import GGUFFile
from ..hparams import HParams, read_hparams
from .build import GraphBuild
from .weights import Bias, WeightSpec, embedding, experts, linear, output, rope_freqs, vector


class Architecture(ABC):
    """A model architecture. `name` is its `general.architecture` in GGUF files."""

    name: ClassVar[str]

    def hparams(self, file: GGUFFile) -> HParams:
        """Return the hyperparameters of a file. Raises the errors of `read_hparams`."""
        return read_hparams(file)

    @abstractmethod
    def tensors(self, hp: HParams) -> list[WeightSpec]:
        """Return all weights of a model of this shape, optional ones included."""

    @abstractmethod
    def build(self, g: GraphBuild) -> Tensor:
        """Build the graph of a step. Return its logits [n_vocab, n_outputs], flagged as output."""


class Decoder(Architecture):
    """Norm, attention, norm, feed-forward: Llama (arXiv 2302.13971) and similar architectures.

    A subclass sets the class variables in which it differs.
    """

    rope_mode: ClassVar[RopeMode]
    qkv_bias: ClassVar[Bias] = Bias.NONE
    bias: ClassVar[Bias] = Bias.NONE  # of the attention's output and of the feed-forward matrices
    qk_norm: ClassVar[bool] = False  # the query and key of each head are normalized
    rope_factors: ClassVar[bool] = False  # files may have rope_freqs.weight
    moe: ClassVar[bool] = False  # files must have experts; if False, they may have experts

    def hparams(self, file: GGUFFile) -> HParams:
        return read_hparams(file, moe=self.moe)

    # --- weights ---

    def tensors(self, hp: HParams) -> list[WeightSpec]:
        specs = [embedding(hp), *output(hp)]
        for il in range(hp.n_layer):
            specs += self._attention_weights(hp, il)
            specs += self._ffn_weights(hp, il)
        return specs

    def _attention_weights(self, hp: HParams, il: int) -> list[WeightSpec]:
        blk, n_head = f"blk.{il}", hp.n_head[il]
        n_q, n_k, n_v = hp.head_dim_k * n_head, hp.n_embd_k(il), hp.n_embd_v(il)
        specs = [
            vector(f"{blk}.attn_norm.weight", hp.n_embd, il),
            *linear(f"{blk}.attn_q", hp.n_embd, n_q, il, self.qkv_bias),
            *linear(f"{blk}.attn_k", hp.n_embd, n_k, il, self.qkv_bias),
            *linear(f"{blk}.attn_v", hp.n_embd, n_v, il, self.qkv_bias),
            *linear(f"{blk}.attn_output", hp.head_dim_v * n_head, hp.n_embd, il, self.bias),
        ]
        if self.qk_norm:
            specs.append(vector(f"{blk}.attn_q_norm.weight", hp.head_dim_k, il))
            specs.append(vector(f"{blk}.attn_k_norm.weight", hp.head_dim_k, il))
        if self.rope_factors:
            specs.append(rope_freqs(hp, il))
        return specs

    def _ffn_weights(self, hp: HParams, il: int) -> list[WeightSpec]:
        blk, n_ff = f"blk.{il}", hp.n_ff[il]
        norm = vector(f"{blk}.ffn_norm.weight", hp.n_embd, il)
        if hp.n_expert:
            return [norm, *experts(hp, il)]
        return [
            norm,
            *linear(f"{blk}.ffn_gate", hp.n_embd, n_ff, il, self.bias),
            *linear(f"{blk}.ffn_up", hp.n_embd, n_ff, il, self.bias),
            *linear(f"{blk}.ffn_down", n_ff, hp.n_embd, il, self.bias),
        ]

    # --- graph ---

    def build(self, g: GraphBuild) -> Tensor:
        x = g.embed()
        for il in range(g.hp.n_layer):
            attn = self._attention(g, il, x)
            if il == g.hp.n_layer - 1:  # the rest is computed for outputs only
                attn, x = g.outputs(attn), g.outputs(x)
            x = ops.add(attn, x).named(f"ffn_inp-{il}")
            cur = g.norm(x, f"blk.{il}.ffn_norm").named(f"ffn_norm-{il}")
            cur = g.moe(il, cur) if g.hp.n_expert else g.ffn(il, cur)
            x = ops.add(cur, x).named(f"l_out-{il}")
        return g.logits(x)

    def _attention(self, g: GraphBuild, il: int, x: Tensor) -> Tensor:
        blk, head_dim = f"blk.{il}", g.hp.head_dim_k
        x = g.norm(x, f"{blk}.attn_norm").named(f"attn_norm-{il}")
        q = g.heads(g.linear(x, f"{blk}.attn_q"), head_dim)
        k = g.heads(g.linear(x, f"{blk}.attn_k"), head_dim)
        v = g.linear(x, f"{blk}.attn_v").named(f"Vcur-{il}")
        if self.qk_norm:
            q = g.norm(q, f"{blk}.attn_q_norm").named(f"Qcur_normed-{il}")
            k = g.norm(k, f"{blk}.attn_k_norm").named(f"Kcur_normed-{il}")
        q = g.rope(q, il, self.rope_mode).named(f"Qcur-{il}")
        k = g.rope(k, il, self.rope_mode).named(f"Kcur-{il}")
        return g.attention(il, q, k, v)
