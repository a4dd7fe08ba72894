"""Chains: nodes that one kernel may compute at once, and their places in a graph.

A chain lists the tensors that its kernel reads and writes. A backend with such a kernel fuses the
chain (`fusion`). Knows no kernels and no memory. Tested by tests/kernels/test_fusion.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

from ...graph.graph import Graph
from ...graph.op import GluParams, Op
from ...graph.tensor import OUTPUT, Tensor
from ...graph.types import GGMLType

# --- kinds of chains ---


@dataclass(frozen=True, slots=True)
class NodeChain(ABC):
    """Nodes that one kernel may compute at once."""

    @property
    @abstractmethod
    def nodes(self) -> tuple[Tensor, ...]:
        """The nodes in the graph's order, without views."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the chain's kernel. It writes the first `n_written` and reads the rest."""

    @property
    def n_written(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class NormMul(NodeChain):
    """`mul` = `norm`, a NORM or RMS_NORM, times its second source.

    With `add`, the norm is of that sum. The kernel writes the sum, too, if `keeps_sum`.
    """

    norm: Tensor
    mul: Tensor
    add: Tensor | None = None
    keeps_sum: bool = False

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return (self.norm, self.mul) if self.add is None else (self.add, self.norm, self.mul)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The product, the rows, the weight. With `add`: the product, the sum (or the product
        again), two operands, the weight."""
        rows: tuple[Tensor, ...] = (self.norm.src[0],)
        if self.add is not None:
            rows = (self.add if self.keeps_sum else self.mul, *self.add.src)
        return self.mul, *rows, self.mul.src[1]

    @property
    def n_written(self) -> int:
        return 1 if self.add is None else 2


def is_row_weighted(chain: NormMul) -> bool:
    """True if the weight is one row for all rows, and all are float32 without gaps."""
    weight, rows, add = chain.mul.src[1], (*chain.tensors, *chain.nodes), chain.add
    one_row = weight.ne[0] == chain.mul.ne[0] and weight.n_rows == 1
    if add is not None:
        one_row = one_row and add.src[1].ne == add.ne
    return one_row and all(t.type is GGMLType.F32 and t.has_contiguous_rows for t in rows)


@dataclass(frozen=True, slots=True)
class NormMulAdd(NodeChain):
    """`add` = the product of a NormMul plus one row, the bias."""

    product: NormMul
    add: Tensor

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return *self.product.nodes, self.add

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The result, then those of the NormMul without its own result, then the bias."""
        mul, *others = self.product.tensors
        return self.add, *(self.add if t is mul else t for t in others), self.add.src[1]

    @property
    def n_written(self) -> int:
        return self.product.n_written


@dataclass(frozen=True, slots=True)
class BiasedMatMul(NodeChain):
    """`last` = a MUL_MAT plus one row, the bias; if there is a `unary`, its function of that."""

    product: Tensor
    add: Tensor
    unary: Tensor | None = None

    @property
    def last(self) -> Tensor:
        return self.unary or self.add

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return (self.product, self.add, *([] if self.unary is None else [self.unary]))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The result, the weights, the columns, the bias."""
        return self.last, *self.product.src, self.add.src[1]


def conv_sources(conv: Tensor) -> tuple[Tensor, ...]:
    """The tensors of a kernel of SSM_CONV: states, slots, x, weights, the bias if there is one.

    The kernel writes the states.
    """
    x, w, states, slots, *bias = conv.src
    return states, slots, x, w, *bias


@dataclass(frozen=True, slots=True)
class ConvUnary(NodeChain):
    """`unary` = a function of `conv`, an SSM_CONV."""

    conv: Tensor
    unary: Tensor

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return self.conv, self.unary

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The result, then `conv_sources`."""
        return self.unary, *conv_sources(self.conv)

    @property
    def n_written(self) -> int:
        return 2


@dataclass(frozen=True, slots=True)
class RopeSetRows(NodeChain):
    """`set_rows` writes the heads that `rope` rotated: a row for each token."""

    rope: Tensor
    set_rows: Tensor

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return self.rope, self.set_rows

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The cache, heads, positions, factors (or the positions again), row indices."""
        x, pos, *factors = self.rope.src
        return self.set_rows, x, pos, *(factors or [pos]), self.set_rows.src[1]

    @property
    def unit(self) -> int:
        """The smallest number of heads that fill whole blocks of the cache's type."""
        block_size = self.set_rows.type.block_size
        return block_size // gcd(block_size, self.rope.ne[0])


@dataclass(frozen=True, slots=True)
class GateUp(NodeChain):
    """`glu` = f(gate) * up, of two MUL_MATs or MUL_MAT_IDs with the same columns (and ids)."""

    gate: Tensor
    up: Tensor
    glu: Tensor

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return self.gate, self.up, self.glu

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The result, the gate's weights, columns, the other weights, ids of a MUL_MAT_ID."""
        a, x, *ids = self.gate.src
        return self.glu, a, x, self.up.src[0], *ids


# --- places in a graph ---


def matches(graph: Graph) -> Iterator[Iterator[NodeChain]]:
    """For each node, the chains that end there.

    Each result inside a chain has one reader and is no output. The sum of a NormMul may have more
    readers.
    """
    uses = _Uses(graph)
    for node in graph.nodes:
        if node.op in _MATCHES and not node.is_empty:
            found = (match(node, uses) for match in _MATCHES[node.op])
            yield (chain for chain in found if chain is not None)


class _Uses:
    """The nodes of a graph and their readers."""

    def __init__(self, graph: Graph) -> None:
        self.place = {node: i for i, node in enumerate(graph.nodes)}
        self._counts = graph.use_counts

    def is_inner(self, t: Tensor) -> bool:
        """True for a node of the graph with one reader that is not an output."""
        return t in self.place and self._counts.get(t) == 1 and not t.flags & OUTPUT


def _match_norm_mul(mul: Tensor, uses: _Uses) -> NormMul | None:
    norm = mul.src[0]
    if norm.op in (Op.NORM, Op.RMS_NORM) and uses.is_inner(norm):
        return NormMul(norm, mul)
    return None


def _match_add_norm_mul(mul: Tensor, uses: _Uses) -> NormMul | None:
    chain = _match_norm_mul(mul, uses)
    if chain is None:
        return None
    add = chain.norm.src[0]
    if add.op is not Op.ADD or add not in uses.place:
        return None
    return NormMul(chain.norm, mul, add, keeps_sum=not uses.is_inner(add))


def _is_biased(add: Tensor) -> bool:
    """True if an ADD adds one row of a leaf to every row."""
    x, bias = add.src
    is_row = bias.op is Op.NONE and bias.ne == (add.ne[0], 1, 1, 1)
    return is_row and all(t.type is GGMLType.F32 and t.has_contiguous_rows for t in (add, x, bias))


def _match_add_norm_mul_add(add: Tensor, uses: _Uses) -> NormMulAdd | None:
    return _biased_norm(add, uses, _match_add_norm_mul)


def _match_norm_mul_add(add: Tensor, uses: _Uses) -> NormMulAdd | None:
    return _biased_norm(add, uses, _match_norm_mul)


def _biased_norm(
    add: Tensor, uses: _Uses, match: Callable[[Tensor, _Uses], NormMul | None]
) -> NormMulAdd | None:
    mul = add.src[0]
    if mul.op is not Op.MUL or not uses.is_inner(mul) or not _is_biased(add):
        return None
    product = match(mul, uses)
    return None if product is None else NormMulAdd(product, add)


def _match_biased(add: Tensor, uses: _Uses) -> BiasedMatMul | None:
    product = add.src[0]
    if product.op is not Op.MUL_MAT or not uses.is_inner(product) or not _is_biased(add):
        return None
    return BiasedMatMul(product, add)


def _match_biased_unary(unary: Tensor, uses: _Uses) -> BiasedMatMul | None:
    add = unary.src[0]
    if add.op is not Op.ADD or not uses.is_inner(add) or not unary.has_contiguous_rows:
        return None
    chain = _match_biased(add, uses)
    return None if chain is None else BiasedMatMul(chain.product, add, unary)


def _match_conv_unary(unary: Tensor, uses: _Uses) -> ConvUnary | None:
    conv = unary.src[0]
    if conv.op is not Op.SSM_CONV or not uses.is_inner(conv) or not unary.has_contiguous_rows:
        return None
    return ConvUnary(conv, unary)


def _match_rope_set_rows(set_rows: Tensor, uses: _Uses) -> RopeSetRows | None:
    rows = set_rows.src[0]
    if rows.op is not Op.RESHAPE or not uses.is_inner(rows):
        return None
    rope = rows.src[0]
    if rope.op is not Op.ROPE or not uses.is_inner(rope):
        return None
    head_dim, n_head, n_tokens, _ = rope.ne
    whole = rows.ne == (head_dim * n_head, n_tokens, 1, 1)
    return RopeSetRows(rope, set_rows) if whole else None


def _match_gate_up(glu: Tensor, uses: _Uses) -> GateUp | None:
    assert isinstance(glu.params, GluParams), f"{glu!r}: {glu.params}"
    if len(glu.src) != 2:
        return None
    gate, up = glu.src
    products = gate.op in (Op.MUL_MAT, Op.MUL_MAT_ID) and up.op is gate.op
    if not products or not uses.is_inner(gate) or not uses.is_inner(up):
        return None
    same = all(s is t for s, t in zip(gate.src[1:], up.src[1:], strict=True))
    if not same or uses.place[gate] > uses.place[up]:
        return None
    return GateUp(gate, up, glu)


_MATCHES: Final[dict[Op, Sequence[Callable[[Tensor, _Uses], NodeChain | None]]]] = {
    Op.MUL: (_match_add_norm_mul, _match_norm_mul),
    Op.ADD: (_match_add_norm_mul_add, _match_norm_mul_add, _match_biased),
    Op.UNARY: (_match_biased_unary, _match_conv_unary),
    Op.SET_ROWS: (_match_rope_set_rows,),
    Op.GLU: (_match_gate_up,),
}
