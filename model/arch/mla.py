"""Multi-head latent attention, in both forms.

Expanded: keys and values are computed for each head, and stored (MiniCPM 3, PLM, old files of
DeepSeek 2). Absorbed: only latent rows are stored, and queries and results are multiplied with the
matrices that would expand them (DeepSeek 2 and 3, Mistral 4).
Tested by tests/model/test_arch_golden.py and test_arch_deepseek2.py.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph import Op, Tensor, ops
from ..hparams import Layer
from ..keys import Keys
from .decoder import Decoder
from .layer_build import LayerBuild

LENGTH_K = "attention.key_length_mla"
LENGTH_V = "attention.value_length_mla"


class ExpandedMLA(Decoder):
    """arXiv 2405.04434. The last elements of a head are rotated, and their keys are common.

    Attributes:
        kv_lora_rank: elements of a token's latent row, without those that are rotated.
        q_lora_rank: the same of queries; 0: they have no latent form.
        n_rot: elements of a head that are rotated.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.kv_lora_rank = keys.count("attention.kv_lora_rank")
        self.q_lora_rank = keys.count("attention.q_lora_rank", 0, low=0)
        self.check(keys)

    def check(self, keys: Keys) -> None:
        """Raise ModelFileError if the file's sizes do not fit together."""
        for layer in self.hp.layers:
            n_head = layer.n_head
            if layer.n_head_kv != n_head:
                keys.fail("attention.head_count_kv", layer.n_head_kv, f"must be {n_head}, as heads")
            self.n_rot = check_n_rot(keys, layer, layer.head_dim_k)

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        shape, n_rot = b.shape, self.n_rot
        n_head, n_nope = shape.n_head, shape.head_dim_k - n_rot
        latent, k_pe = self.compressed(b, x)
        n_kv = n_head * (n_nope + shape.head_dim_v)
        latent = ops.reshape(latent, (self.kv_lora_rank, x.ne[1]))
        kv = b.linear(latent, "attn_kv_b", n_kv)
        k, v = split(b.heads(kv, n_nope + shape.head_dim_v), n_nope)
        k_pe = ops.repeat(k_pe, (n_rot, n_head, x.ne[1]))
        q, q_pe = self.queries(b, self.query_rows(b, x), shape.head_dim_k)
        q = ops.concat(q, q_pe, 0)
        return self.project(b, self.attend(b, q, ops.concat(k, k_pe, 0), ops.cont(v)))

    def compressed(self, b: LayerBuild, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the latent rows [kv_lora_rank, 1, n_tokens] and the rotated keys that all heads
        have, [n_rot, 1, n_tokens]."""
        row = b.linear(x, "attn_kv_a_mqa", self.kv_lora_rank + self.n_rot)
        row = b.named(row, "kv_cmpr_pe")
        latent, k_pe = split(b.heads(row, row.ne[0]), self.kv_lora_rank)
        k_pe = self.rope(b, k_pe, "k_pe")
        return b.norm(latent, "attn_kv_a_norm"), k_pe

    def query_rows(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return what queries are made of: their latent form if they have one, else x."""
        if not self.q_lora_rank:
            return x
        return b.norm(b.linear(x, "attn_q_a", self.q_lora_rank), "attn_q_a_norm")

    def queries(self, b: LayerBuild, rows: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
        """Return the queries [head_dim - n_rot, n_head, n_tokens] of all heads, and their rotated
        elements [n_rot, n_head, n_tokens]."""
        name = "attn_q_b" if self.q_lora_rank else "attn_q"
        q = b.heads(b.named(b.linear(rows, name, head_dim * b.shape.n_head), "q"), head_dim)
        if self.temperature is not None:
            q = b.tempered(q)
        q, q_pe = split(q, head_dim - self.n_rot)
        return q, self.rope(b, q_pe, "q_pe")


class MLA(ExpandedMLA):
    """The absorbed form, if the file has the matrices of each head; otherwise, the expanded one.

    Attention has one head of keys: the latent rows, each followed by its rotated keys. Its values
    are the latent rows.

    Attributes:
        head_dim: elements of a head's queries.
        head_dim_v: elements of a head's result.
    """

    def check(self, keys: Keys) -> None:
        self.is_absorbed = LENGTH_K in keys
        if not self.is_absorbed:
            super().check(keys)
            layer = self.hp.layers[0]
            self.head_dim, self.head_dim_v = layer.head_dim_k, layer.head_dim_v
            return
        self.head_dim, self.head_dim_v = keys.count(LENGTH_K), keys.count(LENGTH_V)
        rank = self.kv_lora_rank
        for layer in self.hp.layers:
            if not layer.n_head:  # it has another mixer
                continue
            self.n_rot = check_n_rot(keys, layer, self.head_dim)
            for name, found, wanted in (
                ("head_count_kv", layer.n_head_kv, 1),
                ("key_length", layer.head_dim_k, rank + self.n_rot),
                ("value_length", layer.head_dim_v, rank),
            ):
                if found != wanted:
                    keys.fail(f"attention.{name}", found, f"must be {wanted}, as for latent rows")
        self.hp = self.hp.with_layers(lambda _, layer: replace(layer, latent=True))

    def require_absorbed(self, keys: Keys) -> None:
        """Raise ModelFileError if a file has no latent rows."""
        if LENGTH_K not in keys:
            keys.fail(LENGTH_K, "absent", "files without latent rows are not supported")

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        if not self.is_absorbed:
            return super().attention(b, x)
        n_head, rank = b.shape.n_head, self.kv_lora_rank
        latent, k_pe = self.compressed(b, x)
        row = ops.concat(latent, k_pe, 0)
        q_rows = self.query_rows(b, x)
        q, q_pe = self.queries(b, q_rows, self.head_dim)
        n_nope = self.head_dim - self.n_rot
        k_b = b.required("attn_k_b.weight", (n_nope, rank, n_head), Op.MUL_MAT)
        q = ops.concat(b.named(by_head(k_b, q), "q_nope_absorbed"), q_pe, 0)
        y = b.heads(self.attend_rows(b, q, row, x, q_rows), rank)
        v_b = b.required("attn_v_b.weight", (rank, self.head_dim_v, n_head), Op.MUL_MAT)
        y = ops.cont(by_head(v_b, y))
        return self.project(b, ops.reshape(y, (self.head_dim_v * n_head, x.ne[1])))

    def attend_rows(
        self, b: LayerBuild, q: Tensor, row: Tensor, x: Tensor, q_rows: Tensor
    ) -> Tensor:
        """Store the latent rows of x [n_embd, n_tokens], and attend to those of all tokens.

        `q_rows`: what queries are made of. Return [kv_lora_rank * n_head, n_tokens].
        """
        return b.attend(q, row, None, scale=self.scale)

    def ignores(self, tensor: str) -> bool:
        """Some files have the matrix of the expanded form, too."""
        return (self.is_absorbed and tensor.endswith(".attn_kv_b.weight")) or super().ignores(
            tensor
        )


def by_head(weight: Tensor, x: Tensor) -> Tensor:
    """Return the products of each head's matrix [n_in, n_out, n_head] and its rows of x [n_in,
    n_head, n_tokens], as a view [n_out, n_head, n_tokens]."""
    y = ops.mul_mat(weight, ops.permute(x, (0, 2, 1, 3)))
    return ops.permute(y, (0, 2, 1, 3))


def check_n_rot(keys: Keys, layer: Layer, head_dim: int) -> int:
    """Return the number of rotated elements of heads of `head_dim`, which is smaller."""
    n_rot = 0 if layer.rope is None else layer.rope.n_dims
    if not 0 < n_rot < head_dim:
        keys.fail("rope.dimension_count", n_rot, f"must be 1 to {head_dim - 1}")
    return n_rot


def split(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return views of the first n elements of each row of x, and of the others."""
    first = ops.view(x, (n, *x.ne[1:]), x.nb)
    return first, ops.view(x, (x.ne[0] - n, *x.ne[1:]), x.nb, n * x.nb[0])
