"""Building blocks of a model's graph: embedding, norms, projections, attention, logits.

A block declares its weights where it uses them. So one function, the architecture's `build`, both
lists the weights and makes the graphs. Tensors have llama.cpp's names (llama-graph.cpp): a name, a
dash, and the layer. Knows no devices and no memory. Tested by tests/model/test_arch_forward.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from ...graph import Op, RopeMode, Tensor, ops
from ...graph.op import UnaryOp
from ..hparams import HParams, Layer
from .inputs import GraphInputs, KVLayer
from .weights import Bias, Part, Weights, WeightSpec

Activation = Callable[[Tensor], Tensor]
Gated = Callable[[Tensor, Tensor], Tensor]  # of gate and up


class Norm(Enum):
    """The norm of a model's layers."""

    RMS = auto()  # arXiv 1910.07467
    LAYER = auto()  # arXiv 1607.06450; with a bias if the file has one


@dataclass(frozen=True, slots=True)
class GraphBuild:
    """The tensors that a graph is built from, and methods that add blocks to it.

    Attributes:
        hp: the model's shape.
        weights: the source of its weights.
        inputs: the graph's inputs.
        kv: the keys and values of each layer, see `LayerMemory`.
        page_size: cells of a page of the pools.
        n_ctx: the size of the context in tokens.
        norm_kind: the norm of the architecture.
        written: for each layer, its keys and values with those of this step.
    """

    hp: HParams
    weights: Weights
    inputs: GraphInputs
    kv: Sequence[KVLayer | None]
    page_size: int
    n_ctx: int
    norm_kind: Norm = Norm.RMS
    written: dict[int, KVLayer] = field(default_factory=dict)

    @property
    def n_tokens(self) -> int:
        return self.inputs.tokens.ne[0]

    def layer(self, il: int) -> LayerBuild:
        """Return a builder of layer `il`."""
        return LayerBuild(self, il, self.hp.layers[il])

    def weight(
        self,
        name: str,
        ne: tuple[int, ...],
        layer: int | None,
        op: Op,
        *,
        files: tuple[tuple[Part, ...], ...] = (),
        required: bool = True,
    ) -> Tensor | None:
        """Declare a weight, see `WeightSpec`, and return it; None if it is absent."""
        files = files or ((Part(name),),)
        return self.weights.find(WeightSpec(name, ne, layer, op, files, required))

    def required(
        self,
        name: str,
        ne: tuple[int, ...],
        layer: int | None,
        op: Op,
        *,
        files: tuple[tuple[Part, ...], ...] = (),
    ) -> Tensor:
        """Declare a weight that every file has, and return it."""
        found = self.weight(name, ne, layer, op, files=files)
        assert found is not None, f"{name} is required"
        return found

    # --- input and output ---

    def embed(self, *, tied: bool = False) -> Tensor:
        """Return the embeddings of the tokens, [n_embd, n_tokens].

        If `tied`, a file without embeddings uses the output matrix.
        """
        ne = (self.hp.n_embd, self.hp.n_vocab)
        names = ("token_embd.weight", "output.weight")
        files = tuple((Part(name),) for name in names[: 1 + tied])
        table = self.required(names[0], ne, None, Op.GET_ROWS, files=files)
        return ops.get_rows(table, self.inputs.tokens).named("inp_embd")

    def add_positions(self, x: Tensor, *, optional: bool = False) -> Tensor:
        """Return x [n_embd, n_tokens] plus the learned embeddings of the tokens' positions.

        The table has n_ctx_train positions. If it is `optional` and absent, return x.
        """
        ne = (self.hp.n_embd, self.hp.n_ctx_train)
        name = "position_embd.weight"
        table = self.weight(name, ne, None, Op.GET_ROWS, required=not optional)
        if table is None:
            return x
        return ops.add(x, ops.get_rows(table, self.inputs.pos)).named("inp_pos_embd")

    def output_norm(self, x: Tensor) -> Tensor:
        """Return the norm before the output matrix."""
        return self.norm(x, "output_norm", self.hp.n_layer).named("result_norm")

    def output(self, x: Tensor, bias: Bias = Bias.NONE) -> Tensor:
        """Return x [n_embd, n_outputs] times the output matrix: [n_vocab, n_outputs].

        A file without an output matrix uses the embedding.
        """
        n_layer = self.hp.n_layer
        files = ((Part("output.weight"),), (Part("token_embd.weight"),))
        y = self.linear(x, "output", self.hp.n_vocab, n_layer, files=files)
        return self.add_bias(y, "output", n_layer, bias)

    # --- blocks ---

    def norm(
        self,
        x: Tensor,
        name: str,
        layer: int | None,
        *,
        ne: tuple[int, ...] | None = None,
        optional: bool = False,
    ) -> Tensor:
        """Return the norm of each row of x, times the weight `name`, plus its bias.

        The weight has one element for each of a row, or the shape `ne`. If it is `optional` and
        absent, return x.
        """
        ne = ne or (x.ne[0],)
        weight = self.weight(f"{name}.weight", ne, layer, Op.MUL, required=not optional)
        if weight is None:
            return x
        y = ops.mul(self.normed(x), weight)
        if self.norm_kind is Norm.RMS:
            return y
        bias = self.weight(f"{name}.bias", ne, layer, Op.ADD, required=False)
        return y if bias is None else ops.add(y, bias)

    def normed(self, x: Tensor) -> Tensor:
        """Return the norm of each row of x, without weights."""
        norm = ops.rms_norm if self.norm_kind is Norm.RMS else ops.norm
        return norm(x, self.hp.eps)

    def linear(
        self,
        x: Tensor,
        name: str,
        n_out: int,
        layer: int | None,
        *,
        files: tuple[tuple[Part, ...], ...] = (),
    ) -> Tensor:
        """Return x [n_in, n_tokens] times the matrix `name` [n_in, n_out]."""
        ne = (x.ne[0], n_out)
        return ops.mul_mat(self.required(f"{name}.weight", ne, layer, Op.MUL_MAT, files=files), x)

    def add_bias(
        self,
        y: Tensor,
        name: str,
        layer: int | None,
        bias: Bias,
        *,
        files: tuple[tuple[Part, ...], ...] = (),
    ) -> Tensor:
        """Return y [n, n_tokens] plus the bias `name` [n], if the file has it."""
        if bias is Bias.NONE:
            return y
        required = bias is Bias.REQUIRED
        found = self.weight(
            f"{name}.bias", (y.ne[0],), layer, Op.ADD, files=files, required=required
        )
        return y if found is None else ops.add(y, found)


@dataclass(frozen=True, slots=True)
class LayerBuild:
    """Adds the blocks of one layer to a graph. `shape` is the layer's."""

    g: GraphBuild
    il: int
    shape: Layer

    @property
    def hp(self) -> HParams:
        return self.g.hp

    def named(self, x: Tensor, name: str) -> Tensor:
        """Name a tensor of this layer."""
        return x.named(f"{name}-{self.il}")

    def outputs(self, *xs: Tensor) -> tuple[Tensor, ...]:
        """Return the rows [n, n_outputs] of each x [n, n_tokens] that become outputs.

        Layers before the last one need all rows, so they get each x itself.
        """
        if self.il < self.hp.n_layer - 1:
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
        return tuple(
            tuple(
                part._replace(tensor=f"blk.{self.il}.{part.tensor}")
                for part in (Part(p) if isinstance(p, str) else p for p in option)
            )
            for option in options
        )

    # --- blocks ---

    def norm(
        self, x: Tensor, name: str, *, ne: tuple[int, ...] | None = None, optional: bool = False
    ) -> Tensor:
        """Return the norm of each row of x, see `GraphBuild.norm`."""
        y = self.g.norm(x, f"blk.{self.il}.{name}", self.il, ne=ne, optional=optional)
        return y if y is x else self.named(y, name)

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
        y = self.g.linear(x, full, n_out, self.il, files=files("weight"))
        whole = [] if part_of is None else [[f"{part_of[0]}.scale"]]
        sources = self.parts([f"{name}.scale"], *whole)
        factor = self.weight(f"{name}.scale", (1,), files=sources) if scaled else None
        if factor is not None:
            y = ops.mul(y, factor)
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
    ) -> Tensor:
        """Write this step's keys and values into the pool, and attend.

        Args:
            q: [head_dim_k, n_head, n_tokens].
            k: [head_dim_k, n_head_kv, n_tokens], or [n_embd_k, n_tokens]. None: the keys and
                values of layer `shape.kv_layer` are used.
            v: [n_embd_v, n_tokens], or [head_dim_v, n_head_kv, n_tokens].
            scale: factor of the scores; None: 1 / sqrt(head_dim_k).
            max_bias, softcap, sinks: see `ops.flash_attn_ext`.

        Returns:
            [head_dim_v * n_head, n_tokens].
        """
        g, shape = self.g, self.shape
        if k is not None and v is not None:
            g.written[self.il] = self._write(k, v)
        kv = g.written[self.il if shape.kv_layer is None else shape.kv_layer]
        inputs, group = g.inputs, g.inputs.group(self.il)
        x = ops.flash_attn_ext(
            q,
            kv.k,
            kv.v,
            group.pages,
            inputs.seq,
            inputs.pos,
            group.begin,
            inputs.end,
            sinks,
            page_size=g.page_size,
            scale=1.0 / math.sqrt(shape.head_dim_k) if scale is None else scale,
            max_bias=max_bias,
            softcap=softcap,
            n_swa=0 if shape.window is None else shape.window.n_swa,
        )
        x = self.named(x, "fattn")
        return self.named(ops.reshape(x, (x.ne[0] * x.ne[1], x.ne[2])), "kqv_out")

    def _write(self, k: Tensor, v: Tensor) -> KVLayer:
        """Return the pool's keys and values after this step's are written.

        Attention reads these results, not the pool, so that it comes after the writes.
        """
        pool, cells = self.g.kv[self.il], self.g.inputs.group(self.il).cells
        assert pool is not None, f"layer {self.il} has no keys and values"
        k, v = (ops.reshape(x, (x.n_elements // self.g.n_tokens, self.g.n_tokens)) for x in (k, v))
        return KVLayer(
            self.named(ops.set_rows(pool.k, k, cells), "cache_k"),
            self.named(ops.set_rows(pool.v, v, cells), "cache_v"),
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


def relu_sqr(x: Tensor) -> Tensor:
    """Return the square of max(x, 0) (arXiv 2109.08668)."""
    return ops.sqr(ops.relu(x))


def softcapped(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap); x itself if `cap` is 0."""
    if not cap:
        return x
    return ops.scale(ops.unary(ops.scale(x, 1.0 / cap), UnaryOp.TANH), cap)
