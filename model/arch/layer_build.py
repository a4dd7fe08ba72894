"""Building blocks of one layer: projections, attention and feed-forward parts.

A block declares its weights where it uses them, as in build.py. Knows no devices and no memory.
Tested by tests/model/test_arch_forward.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...graph import Op, RopeMode, Tensor, ops
from ..hparams import HParams, Layer
from .build import Activation, Gated, GraphBuild
from .inputs import KVLayer
from .weights import Bias, Part


@dataclass(frozen=True, slots=True)
class LayerBuild:
    """Adds the blocks of one layer to a graph. `shape` is the layer's."""

    g: GraphBuild
    il: int
    shape: Layer

    @classmethod
    def of(cls, g: GraphBuild, il: int) -> LayerBuild:
        """Return the builder of layer `il`."""
        return cls(g, il, g.hp.layers[il])

    @property
    def hp(self) -> HParams:
        return self.g.hp

    @property
    def states(self) -> Sequence[Tensor]:
        """The states of this layer, each [size, n_slots]."""
        return self.g.states[self.il]

    @property
    def slots(self) -> Tensor:
        """The slots that the tokens read and write, I32 [2, n_tokens]."""
        slots = self.g.inputs.slots
        assert slots is not None, "no layer has states"
        return slots

    def named(self, x: Tensor, name: str) -> Tensor:
        """Name a tensor of this layer."""
        return x.named(f"{name}-{self.il}")

    def outputs(self, *xs: Tensor) -> tuple[Tensor, ...]:
        """Return the rows [n, n_outputs] of each x [n, n_tokens] that become outputs.

        Layers before the last one need all rows, so they get each x itself. So does the last one if
        hidden states are kept.
        """
        if self.il < self.hp.n_layer - 1 or self.g.hidden is not None:
            return xs
        return tuple(ops.get_rows(x, self.g.inputs.out_ids) for x in xs)

    def add(self, x: Tensor, y: Tensor, name: str) -> Tensor:
        """Return x + y, such as a residual connection."""
        return self.named(ops.add(x, y), name)

    # --- weights ---

    def weight(
        self,
        name: str,
        ne: tuple[int, ...],
        op: Op = Op.MUL,
        *,
        tensor: str = "",
        files: tuple[tuple[Part, ...], ...] = (),
    ) -> Tensor | None:
        """Return an optional weight of this layer. `files` are its sources, see `WeightSpec`.

        `tensor` is a tensor of the file that all layers use; each layer has its own weight, as
        layers may be on different devices.
        """
        files = ((Part(tensor),),) if tensor else files
        full = f"blk.{self.il}.{name}"
        return self.g.weight(full, ne, self.il, op, files=files, required=False)

    def required(
        self,
        name: str,
        ne: tuple[int, ...],
        op: Op = Op.MUL,
        *,
        files: tuple[tuple[Part, ...], ...] = (),
    ) -> Tensor:
        """Return a weight of this layer that every file has."""
        return self.g.required(f"blk.{self.il}.{name}", ne, self.il, op, files=files)

    def parts(self, *options: Sequence[Part | str]) -> tuple[tuple[Part, ...], ...]:
        """Return sources of a weight; names of tensors are without the layer."""
        return tuple(tuple([self._part(part) for part in option]) for option in options)

    def _part(self, part: Part | str) -> Part:
        if isinstance(part, str):
            return Part(f"blk.{self.il}.{part}")
        return part._replace(tensor=f"blk.{self.il}.{part.tensor}")

    # --- blocks ---

    def norm(
        self, x: Tensor, name: str, *, ne: tuple[int, ...] | None = None, optional: bool = False
    ) -> Tensor:
        """Return the norm of each row of x, see `GraphBuild.norm`."""
        y = self.g.norm(x, f"blk.{self.il}.{name}", self.il, ne=ne, optional=optional)
        return y if y is x else self.named(y, name)

    def bare_norm(self, x: Tensor, name: str) -> Tensor:
        """Return the norm of each row of x. Some converters leave out the suffix ".weight"."""
        files = self.parts([f"{name}.weight"], [name])
        weight = self.required(f"{name}.weight", (x.ne[0],), files=files)
        return self.named(ops.mul(self.g.normed(x), weight), name)

    def linear(
        self,
        x: Tensor,
        name: str,
        n_out: int,
        bias: Bias = Bias.NONE,
        *,
        part_of: tuple[str, int, int] | None = None,
        scaled: bool = True,
    ) -> Tensor:
        """Return x [n_in, n_tokens] times the matrix `name` [n_in, n_out], plus its bias.

        Args:
            x: rows.
            name: without the layer.
            n_out: columns of the result.
            bias: its presence.
            part_of: (tensor, begin, n_rows); files may have the matrix as rows of a larger one.
            scaled: the product may have a factor, as in files with NVFP4 matrices. Rows of a
                larger matrix have its factor.
        """

        def files(kind: str) -> tuple[tuple[Part, ...], ...]:
            if part_of is None:
                return ()
            tensor, begin, n_rows = part_of
            part = Part(f"{tensor}.{kind}", begin, n_out, n_rows)
            return self.parts([f"{name}.{kind}"], [part])

        full = f"blk.{self.il}.{name}"
        y = self.g.product(x, full, n_out, self.il, files=files("weight"))
        whole = [] if part_of is None else [[f"{part_of[0]}.scale"]]
        sources = self.parts([f"{name}.scale"], *whole)
        factor = self.weight(f"{name}.scale", (1,), files=sources) if scaled else None
        if factor is not None:
            y = ops.mul(y, factor)
        y = self.g.with_adapters(y, x, full)
        return self.g.add_bias(y, full, self.il, bias, files=files("bias"))

    # --- attention ---

    def qkv(self, x: Tensor, bias: Bias = Bias.NONE) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of x: [head_dim * n_head, n_tokens]."""
        q, k, v = (self.one_of_qkv(x, kind, bias) for kind in "qkv")
        return q, k, self.named(v, "Vcur")

    def one_of_qkv(self, x: Tensor, kind: str, bias: Bias = Bias.NONE) -> Tensor:
        """Return the queries ("q"), keys ("k") or values ("v") of x, [head_dim * n_head, n_tokens].

        A file may have the three matrices in one tensor, `attn_qkv`.
        """
        shape = self.shape
        n_q = shape.head_dim_k * shape.n_head
        sizes = {"q": n_q, "k": shape.n_embd_k, "v": shape.n_embd_v}
        begin = {"q": 0, "k": n_q, "v": n_q + shape.n_embd_k}[kind]
        part_of = ("attn_qkv", begin, sum(sizes.values()))
        return self.linear(x, f"attn_{kind}", sizes[kind], bias, part_of=part_of)

    def heads(self, x: Tensor, head_dim: int | None = None) -> Tensor:
        """Reshape x [head_dim * n_head, n_tokens] to [head_dim, n_head, n_tokens]."""
        head_dim = head_dim or self.shape.head_dim_k
        return ops.reshape(x, (head_dim, x.ne[0] // head_dim, x.ne[1]))

    def rope(self, x: Tensor, name: str, mode: RopeMode, factors: Tensor | None = None) -> Tensor:
        """Return x [head_dim_k, n_head, n_tokens] with rotary position embedding.

        Each pair's frequency is divided by its element of `factors`.
        """
        rope = self.shape.rope
        if rope is None:
            return self.named(x, name)
        y = ops.rope(
            x,
            self.g.inputs.pos,
            factors,
            n_dims=rope.n_dims,
            mode=mode,
            n_ctx_orig=rope.n_ctx_orig,
            freq_base=rope.freq_base,
            freq_scale=rope.freq_scale,
            ext_factor=rope.ext_factor,
            attn_factor=rope.attn_factor,
            beta_fast=rope.beta_fast,
            beta_slow=rope.beta_slow,
        )
        return self.named(y, name)

    def tempered(self, q: Tensor) -> Tensor:
        """Return queries [head_dim, n_head, n_tokens] times their tokens' `Temperature`."""
        scale = self.g.inputs.attn_scale
        return ops.mul(q, ops.reshape(scale, (1, 1, scale.ne[0])))

    def rope_factors(self, tensor: str = "rope_freqs.weight") -> Tensor | None:
        """Return the file's factors of rope frequencies, [n_dims / 2]; None if it has none."""
        rope = self.shape.rope
        if rope is None:
            return None
        return self.weight(tensor, (rope.n_dims // 2,), Op.ROPE, tensor=tensor)

    def attend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        *,
        scale: float | None = None,
        max_bias: float = 0.0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """Write this step's keys and values into the pool, and attend.

        Args:
            q: [head_dim_k, n_head, n_tokens].
            k: [head_dim_k, n_head_kv, n_tokens], or [n_embd_k, n_tokens]. None: those that were
                stored are used, or the keys and values of layer `shape.kv_layer`.
            v: [n_embd_v, n_tokens], or [head_dim_v, n_head_kv, n_tokens]. None beside keys: they
                are the first elements of keys.
            scale: factor of the scores; None: 1 / sqrt(head_dim_k).
            max_bias, softcap, sinks: see `ops.flash_attn_ext`.
            chosen: the cells that tokens attend to, see `choose`; None: all that they see.

        Returns:
            [head_dim_v * n_head, n_tokens].
        """
        g, shape = self.g, self.shape
        if k is not None:
            self.store(k, v)
        kv = g.written[self.il if shape.kv_layer is None else shape.kv_layer]
        keys = kv.k if kv.k.ne[0] == shape.n_embd_k else _elements(kv.k, 0, shape.n_embd_k)
        inputs, group = g.inputs, g.inputs.group(self.il)
        pages, seq, end, page_size = group.pages, inputs.seq, group.end, g.page_size
        if chosen is not None:  # pages of one cell, and each token is a sequence of its own
            assert inputs.rows is not None, "no layer has a sparse indexer"
            assert inputs.n_chosen is not None, "no layer has a sparse indexer"
            pages, seq, end, page_size = chosen, inputs.rows, inputs.n_chosen, 1
        x = ops.flash_attn_ext(
            q,
            keys,
            kv.v or _elements(kv.k, 0, shape.n_embd_v),
            pages,
            seq,
            inputs.pos,
            group.begin,
            end,
            sinks,
            page_size=page_size,
            scale=1.0 / math.sqrt(shape.head_dim_k) if scale is None else scale,
            max_bias=max_bias,
            softcap=softcap,
            n_swa=0 if shape.window is None else shape.window.n_visible,
        )
        x = self.named(x, "fattn")
        return self.named(ops.reshape(x, (x.ne[0] * x.ne[1], x.ne[2])), "kqv_out")

    def choose(self, q: Tensor, weights: Tensor, top_k: int) -> Tensor:
        """Return the cells of the positions with the best scores, [top_k, n_tokens] or fewer.

        Args:
            q: an indexer's queries, [size, n_head, n_tokens]. Its keys are stored, as the last
                elements of a token's row.
            weights: of its heads, [n_head, n_tokens].
            top_k: the number of positions.
        """
        inputs, group, page_size = self.g.inputs, self.g.inputs.group(self.il), self.g.page_size
        k = _elements(self.g.written[self.il].k, self.shape.n_embd_k, q.ne[0])
        scores = ops.index_scores(
            q, k, weights, group.pages, inputs.seq, group.end, page_size=page_size, top_k=top_k
        )
        best = ops.top_k(self.named(scores, "index_scores"), min(top_k, scores.ne[0]))
        cells = ops.page_cells(best, group.pages, inputs.seq, page_size=page_size)
        return self.named(cells, "chosen")

    def store(self, k: Tensor, v: Tensor | None) -> None:
        """Write this step's keys and values into the pool.

        Attention reads the results of these writes, not the pool, so that it comes after them.
        """
        pool, cells = self.g.kv[self.il], self.g.inputs.group(self.il).cells
        assert pool is not None, f"layer {self.il} has no keys and values"

        def written(to: Tensor, x: Tensor, name: str) -> Tensor:
            rows = ops.reshape(x, (x.n_elements // self.g.n_tokens, self.g.n_tokens))
            return self.named(ops.set_rows(to, rows, cells), name)

        self.g.written[self.il] = KVLayer(
            written(pool.k, k, "cache_k"),
            None if v is None or pool.v is None else written(pool.v, v, "cache_v"),
        )

    # --- feed-forward ---

    def gated(
        self,
        x: Tensor,
        n_ff: int,
        act: Gated = ops.swiglu,
        bias: Bias = Bias.NONE,
        *,
        suffix: str = "",
    ) -> Tensor:
        """Return down(act(gate(x), up(x))) of x [n_embd, n_tokens] (arXiv 2002.05202).

        A file may have gate and up in one tensor, `ffn_up`. `suffix` follows the tensors' names.
        """
        fused = f"ffn_up{suffix}"
        gate = self.linear(x, f"ffn_gate{suffix}", n_ff, bias, part_of=(fused, 0, 2 * n_ff))
        up = self.linear(x, fused, n_ff, bias, part_of=(fused, n_ff, 2 * n_ff))
        gate, up = self.named(gate, f"ffn_gate{suffix}"), self.named(up, fused)
        hidden = self.named(act(gate, up), f"ffn_{act.__name__}{suffix}")
        return self.down(hidden, bias, suffix=suffix)

    def mlp(
        self,
        x: Tensor,
        n_ff: int,
        act: Activation,
        bias: Bias = Bias.NONE,
        *,
        suffix: str = "",
    ) -> Tensor:
        """Return down(act(up(x))) of x [n_embd, n_tokens]."""
        up = self.named(self.linear(x, f"ffn_up{suffix}", n_ff, bias), f"ffn_up{suffix}")
        return self.down(self.named(act(up), f"ffn_{act.__name__}{suffix}"), bias, suffix=suffix)

    def down(self, hidden: Tensor, bias: Bias = Bias.NONE, *, suffix: str = "") -> Tensor:
        """Return the product of a feed-forward part's last matrix, [n_embd, n_tokens]."""
        y = self.linear(hidden, f"ffn_down{suffix}", self.hp.n_embd, bias)
        return self.named(y, f"ffn_out{suffix}")


def _elements(rows: Tensor, begin: int, n: int) -> Tensor:
    """Return a view of n elements of each row of a matrix, from `begin` on."""
    return ops.view(rows, (n, rows.ne[1]), rows.nb[:2], rows.type.row_size(begin))
