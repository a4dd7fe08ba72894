"""Building blocks of a model's graph: embedding, norms, projections, attention, experts, logits.

Tensors have llama.cpp's names (llama-graph.cpp): a name, a dash, and the layer. Knows no devices
and no memory. Tested by tests/model/test_arch_forward.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from ...graph import GGMLType, RopeMode, Tensor, ops
from ..hparams import HParams

ALIGNED: Final = 16  # elements, so that every input begins at a cache line


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """The input tensors of a graph, written before each computation.

    All are I32 views of `whole`, so that a device receives them in one copy.

    Attributes:
        tokens: [n_tokens] token ids.
        pos: [n_tokens] position of each token.
        begin: [n_tokens] first position that each token attends to.
        end: [n_tokens] end of the positions that each token attends to.
        seq: [n_tokens] column of each token's sequence in `pages`.
        pages: [n_pages, n_seqs] page table.
        cells: [n_tokens] cell of the pool that each token's keys and values are written to.
        out_ids: [n_outputs] indices of the tokens with logits as outputs.
    """

    whole: Tensor
    tokens: Tensor
    pos: Tensor
    begin: Tensor
    end: Tensor
    seq: Tensor
    pages: Tensor
    cells: Tensor
    out_ids: Tensor

    @classmethod
    def new(cls, n_tokens: int, n_outputs: int, n_pages: int, n_seqs: int) -> GraphInputs:
        """Return unallocated inputs of these sizes."""
        shapes = {
            "tokens": (n_tokens,),
            "pos": (n_tokens,),
            "begin": (n_tokens,),
            "end": (n_tokens,),
            "seq": (n_tokens,),
            "pages": (n_pages, n_seqs),
            "cells": (n_tokens,),
            "out_ids": (n_outputs,),
        }
        sizes = [-(-math.prod(ne) // ALIGNED) * ALIGNED for ne in shapes.values()]
        begins = accumulate(sizes, initial=0)
        whole = Tensor(GGMLType.I32, (sum(sizes),), name="inputs").set_bundle()
        views = {
            name: ops.view(whole, ne, offset=4 * begin).named(f"inp_{name}")
            for (name, ne), begin in zip(shapes.items(), begins, strict=False)
        }
        return cls(whole, **views)


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer's KV pool."""

    k: Tensor  # [head_dim_k * n_head_kv, n_cells]
    v: Tensor  # [head_dim_v * n_head_kv, n_cells]


@dataclass(frozen=True, slots=True)
class GraphBuild:
    """The tensors that a graph is built from, and methods that add blocks to it.

    `weights` have the names of `WeightSpec`; the file may lack optional ones. A page of the pool
    holds `page_size` cells.
    """

    hp: HParams
    weights: Mapping[str, Tensor]
    inputs: GraphInputs
    kv: Sequence[KVLayer]
    page_size: int

    @property
    def n_tokens(self) -> int:
        return self.inputs.tokens.ne[0]

    # --- input and output ---

    def embed(self) -> Tensor:
        """Return the embeddings of the tokens, [n_embd, n_tokens]."""
        return ops.get_rows(self.weights["token_embd.weight"], self.inputs.tokens).named("inp_embd")

    def outputs(self, x: Tensor) -> Tensor:
        """Return the rows of x [n, n_tokens] that become outputs, [n, n_outputs]."""
        return ops.get_rows(x, self.inputs.out_ids)

    def logits(self, x: Tensor) -> Tensor:
        """Return logits [n_vocab, n_outputs] of x [n_embd, n_outputs]: norm and output matrix."""
        x = self.norm(x, "output_norm").named("result_norm")
        return ops.mul_mat(self.weights["output.weight"], x).named("result_output").set_output()

    # --- blocks ---

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Return the RMS norm of each row of x, times the weight `name`."""
        return ops.mul(ops.rms_norm(x, self.hp.rms_eps), self.weights[f"{name}.weight"])

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Return x [n_in, n_tokens] times the matrix `name`, plus its bias if it has one."""
        y = ops.mul_mat(self.weights[f"{name}.weight"], x)
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else ops.add(y, bias)

    def heads(self, x: Tensor, head_dim: int) -> Tensor:
        """Reshape x [head_dim * n_head, n_tokens] to [head_dim, n_head, n_tokens]."""
        return ops.reshape(x, (head_dim, x.ne[0] // head_dim, x.ne[1]))

    def rope(self, x: Tensor, il: int, mode: RopeMode) -> Tensor:
        """Return x [head_dim_k, n_head, n_tokens] with rotary position embedding."""
        scaling = self.hp.rope
        return ops.rope(
            x,
            self.inputs.pos,
            self.weights.get(f"blk.{il}.rope_freqs.weight"),
            n_dims=self.hp.n_rot,
            mode=mode,
            n_ctx_orig=scaling.n_ctx_orig,
            freq_base=scaling.freq_base,
            freq_scale=scaling.freq_scale,
            ext_factor=scaling.ext_factor,
            attn_factor=scaling.attn_factor,
            beta_fast=scaling.beta_fast,
            beta_slow=scaling.beta_slow,
        )

    def attention(self, il: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this step's keys and values into the pool, attend, and project.

        Args:
            il: the layer.
            q: [head_dim_k, n_head, n_tokens].
            k: [head_dim_k, n_head_kv, n_tokens].
            v: [head_dim_v * n_head_kv, n_tokens].

        Returns:
            [n_embd, n_tokens].
        """
        inputs, pool = self.inputs, self.kv[il]
        k = ops.reshape(k, (pool.k.ne[0], self.n_tokens))
        x = ops.flash_attn_ext(
            q,
            # the results of SET_ROWS, not the pool, so that attention comes after the writes
            ops.set_rows(pool.k, k, inputs.cells).named(f"cache_k-{il}"),
            ops.set_rows(pool.v, v, inputs.cells).named(f"cache_v-{il}"),
            inputs.pages,
            inputs.seq,
            inputs.pos,
            inputs.begin,
            inputs.end,
            page_size=self.page_size,
            scale=1.0 / math.sqrt(self.hp.head_dim_k),
        ).named(f"fattn-{il}")
        x = ops.reshape(x, (x.ne[0] * x.ne[1], self.n_tokens)).named(f"kqv_out-{il}")
        return self.linear(x, f"blk.{il}.attn_output").named(f"attn_out-{il}")

    def ffn(self, il: int, x: Tensor) -> Tensor:
        """Return SwiGLU (arXiv 2002.05202) of x [n_embd, n_tokens]: down(silu(gate(x)) * up(x))."""
        gate = self.linear(x, f"blk.{il}.ffn_gate").named(f"ffn_gate-{il}")
        up = self.linear(x, f"blk.{il}.ffn_up").named(f"ffn_up-{il}")
        hidden = ops.swiglu(gate, up).named(f"ffn_swiglu-{il}")
        return self.linear(hidden, f"blk.{il}.ffn_down").named(f"ffn_out-{il}")

    def moe(self, il: int, x: Tensor) -> Tensor:
        """Return the weighted sum of SwiGLU by each token's n_expert_used best experts.

        x and the result are [n_embd, n_tokens]. The router's softmax is over all experts. The
        weights of the chosen experts are scaled to a sum of 1 (arXiv 2401.04088; llama-graph.cpp,
        build_moe_ffn with norm_w).
        """
        chosen, weights = self._route(il, x)
        rows = ops.reshape(x, (x.ne[0], 1, x.ne[1]))
        gate = self._experts(il, "gate", rows, chosen)
        up = self._experts(il, "up", rows, chosen)
        hidden = ops.swiglu(gate, up).named(f"ffn_moe_swiglu-{il}")
        down = self._experts(il, "down", hidden, chosen)  # [n_embd, n_used, n_tokens]
        weighted = ops.mul(down, weights).named(f"ffn_moe_weighted-{il}")
        return self._sum_experts(weighted).named(f"ffn_moe_out-{il}")

    def _route(self, il: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (experts [n_used, n_tokens], the best first; weights [1, n_used, n_tokens])."""
        n_expert, n_used, n_tokens = self.hp.n_expert, self.hp.n_expert_used, x.ne[1]
        logits = self.linear(x, f"blk.{il}.ffn_gate_inp").named(f"ffn_moe_logits-{il}")
        probs = ops.soft_max(logits).named(f"ffn_moe_probs-{il}")
        chosen = ops.argsort_top_k(probs, n_used).named(f"ffn_moe_topk-{il}")
        weights = ops.get_rows(ops.reshape(probs, (1, n_expert, n_tokens)), chosen)
        weights = ops.reshape(weights.named(f"ffn_moe_weights-{il}"), (n_used, n_tokens))
        total = ops.sum_rows(weights).named(f"ffn_moe_weights_sum-{il}")
        weights = ops.div(weights, total).named(f"ffn_moe_weights_norm-{il}")
        return chosen, ops.reshape(weights, (1, n_used, n_tokens))

    def _experts(self, il: int, kind: str, rows: Tensor, chosen: Tensor) -> Tensor:
        matrices = self.weights[f"blk.{il}.ffn_{kind}_exps.weight"]
        return ops.mul_mat_id(matrices, rows, chosen).named(f"ffn_moe_{kind}-{il}")

    def _sum_experts(self, x: Tensor) -> Tensor:
        """Sum over experts in a fixed order: [n_embd, n_used, n_tokens] to [n_embd, n_tokens]."""
        parts = [
            ops.view(x, (x.ne[0], x.ne[2]), (x.nb[0], x.nb[2]), i * x.nb[1]) for i in range(x.ne[1])
        ]
        total = parts[0]
        for part in parts[1:]:
            total = ops.add(total, part)
        return total if len(parts) > 1 else ops.cont(total)
