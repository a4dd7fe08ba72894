"""Building blocks of a model's graph that belong to no layer: embedding, norms, products, logits.

A block declares its weights where it uses them. So one function, the architecture's `forward`, both
lists the weights and makes the graphs. Tensors have llama.cpp's names (llama-graph.cpp): a name, a
dash, and the layer. Knows no devices and no memory. Tested by tests/model/test_arch_forward.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from ...graph import Op, Tensor, ops
from ...graph.op import GluOp, UnaryOp
from ..hparams import HParams
from .adapted import Adapted
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
        adapted: adds the products of LoRA adapters; None: no token of the step has an adapter.
        control: the direction of each layer that control vectors steer, [n_embd].
        states: the states of each layer that has some, each [size, n_slots].
        written: for each layer, its keys and values with those of this step.
        chosen: for each layer with sparse attention, the cells that tokens attend to.
        embeddings: the last layer's normalized output, if an output matrix follows it.
        hidden: the hidden states of all tokens are added here; None: they are not kept.
    """

    hp: HParams
    weights: Weights
    inputs: GraphInputs
    kv: Sequence[KVLayer | None]
    page_size: int
    n_ctx: int
    norm_kind: Norm = Norm.RMS
    adapted: Adapted | None = None
    control: Mapping[int, Tensor] = field(default_factory=dict)
    states: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    written: dict[int, KVLayer] = field(default_factory=dict)
    chosen: dict[int, Tensor] = field(default_factory=dict)
    embeddings: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] | None = None

    @property
    def n_tokens(self) -> int:
        return self.inputs.tokens.ne[0]

    def weight(
        self,
        name: str,
        ne: tuple[int, ...],
        layer: int | None,
        op: Op,
        *,
        files: tuple[tuple[Part, ...], ...] = (),
        required: bool = True,
        adapts: bool = False,
    ) -> Tensor | None:
        """Declare a weight, see `WeightSpec`, and return it; None if it is absent."""
        files = files or ((Part(name),),)
        return self.weights.find(WeightSpec(name, ne, layer, op, files, required, adapts))

    def required(
        self,
        name: str,
        ne: tuple[int, ...],
        layer: int | None,
        op: Op,
        *,
        files: tuple[tuple[Part, ...], ...] = (),
        adapts: bool = False,
    ) -> Tensor:
        """Declare a weight that every file has, and return it."""
        found = self.weight(name, ne, layer, op, files=files, adapts=adapts)
        assert found is not None, f"{name} is required"
        return found

    def steered(self, x: Tensor, layer: int) -> Tensor:
        """Return a layer's output x [n_embd, ...] plus the direction of control vectors, if any."""
        direction = self.control.get(layer)
        return x if direction is None else ops.add(x, direction).named(f"cvec-{layer}")

    # --- input and output ---

    def embed(self, *, tied: bool = False) -> Tensor:
        """Return the embeddings of the tokens, [n_embd, n_tokens].

        If `tied`, a file without embeddings uses the output matrix.
        """
        ne = (self.hp.n_embd, self.hp.n_vocab)
        names = ("token_embd.weight", "output.weight")
        files = tuple((Part(name),) for name in names[: 1 + tied])
        table = self.required(names[0], ne, None, Op.GET_ROWS, files=files, adapts=True)
        y, tokens = ops.get_rows(table, self.inputs.tokens), self.inputs.tokens
        if self.adapted is not None:
            y = self.adapted.add_embedding(y, tokens, names[0])
        return y.named("inp_embd")

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

    def add_token_type(self, x: Tensor, n_types: int) -> Tensor:
        """Return x [n_embd, n_tokens] plus the embedding of the first of `n_types` token types.

        A file may lack it.
        """
        ne, name = (self.hp.n_embd, 1), "token_types.weight"
        files = ((Part(name, 0, 1, n_types),),)
        found = self.weight(name, ne, None, Op.ADD, files=files, required=False)
        return x if found is None else ops.add(x, found).named("inp_token_types")

    def output_norm(self, x: Tensor) -> Tensor:
        """Return the norm before the output matrix."""
        return self.norm(x, "output_norm", self.hp.n_layer).named("result_norm")

    def output(self, x: Tensor, bias: Bias = Bias.NONE) -> Tensor:
        """Return x [n_embd, n_outputs] times the output matrix: [n_vocab, n_outputs].

        A file without an output matrix uses the embedding.
        """
        n_layer = self.hp.n_layer
        x = self.keep(x)
        self.embeddings.append(x)
        files = ((Part("output.weight"),), (Part("token_embd.weight"),))
        y = self.linear(x, "output", self.hp.n_vocab, n_layer, files=files)
        return self.add_bias(y, "output", n_layer, bias)

    def keep(self, x: Tensor) -> Tensor:
        """Return the rows of hidden states x that become outputs. If hidden states are kept, x has
        those of all tokens."""
        if self.hidden is None:
            return x
        self.hidden.append(x.named("result_hidden").set_output())
        return ops.get_rows(x, self.inputs.out_ids)

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
        """Return x [n_in, n_tokens] times the matrix `name` [n_in, n_out], with its adapters."""
        return self.with_adapters(self.product(x, name, n_out, layer, files=files), x, name)

    def product(
        self,
        x: Tensor,
        name: str,
        n_out: int,
        layer: int | None,
        *,
        files: tuple[tuple[Part, ...], ...] = (),
    ) -> Tensor:
        """Return the same product as the file has it. `with_adapters` has to follow."""
        ne, full = (x.ne[0], n_out), f"{name}.weight"
        return ops.mul_mat(self.required(full, ne, layer, Op.MUL_MAT, files=files, adapts=True), x)

    def with_adapters(self, y: Tensor, x: Tensor, name: str) -> Tensor:
        """Return y, the product of x and the matrix `name`, with the products of its adapters."""
        return y if self.adapted is None else self.adapted.add(y, x, f"{name}.weight")

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


def relu_sqr(x: Tensor) -> Tensor:
    """Return the square of max(x, 0) (arXiv 2109.08668)."""
    return ops.sqr(ops.relu(x))


def geglu_erf(gate: Tensor, up: Tensor) -> Tensor:
    """Return GELU(gate) * up, without GELU's approximation by tanh (arXiv 1606.08415)."""
    return ops.glu(gate, up, GluOp.GEGLU_ERF)


def softcapped(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap); x itself if `cap` is 0."""
    if not cap:
        return x
    return ops.scale(ops.unary(ops.scale(x, 1.0 / cap), UnaryOp.TANH), cap)
