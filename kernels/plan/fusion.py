"""Fusion: chains of nodes that one kernel computes at once, with the bits of single kernels.

    FUSERS = Fusers[Call]()

    @FUSERS.fuses(NormMul)
    def norm_mul(chain: NormMul) -> Sequence[Call] | None: ...   # None: not this one

A chain runs where its last node stands. So `optimize`, before memory is planned, asks to keep what
the chain reads alive until then; and `calls_in_order`, once addresses are known, looks whether a
range is written that something else still needs: such a chain is computed node by node.

What only the chain itself reads is not written at all. Whoever looks at single nodes while they are
computed (`Scheduler.set_eval_callback`) still sees them: a chain never reaches past them.
Knows no kernels; each backend that compiles plans has `Fusers` of its own, and declares its kernels
there. Tested by tests/kernels/test_cpu_fusion.py and tests/kernels/test_cuda_fusion.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Generic, TypeVar

from ...graph.graph import Graph
from ...graph.op import VIEW_OPS, GluParams, Op
from ...graph.tensor import OUTPUT, Tensor
from ...sched.backend import KeepAlive
from .steps import AddressOf, CallT, Range, overlaps

UseCounts = Mapping[Tensor, int]  # how often each tensor of a graph is a source


# --- kinds of chains ---


@dataclass(frozen=True, slots=True)
class Chain(ABC):
    """Nodes that may be computed at once."""

    @property
    @abstractmethod
    def nodes(self) -> tuple[Tensor, ...]:
        """The nodes in the graph's order, without views between them. Only the last is written,
        unless the chain says otherwise."""


@dataclass(frozen=True, slots=True)
class NormMul(Chain):
    """`mul` = `norm`, a NORM or RMS_NORM, times its second source."""

    norm: Tensor
    mul: Tensor

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return self.norm, self.mul


@dataclass(frozen=True, slots=True)
class AddNormMul(Chain):
    """As NormMul, of the sum `add`, which is written too if `keeps_sum`."""

    add: Tensor
    norm: Tensor
    mul: Tensor
    keeps_sum: bool

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return self.add, self.norm, self.mul


@dataclass(frozen=True, slots=True)
class RopeSetRows(Chain):
    """`set_rows` writes the heads that `rope` turned, each token's in a row."""

    rope: Tensor
    set_rows: Tensor

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return self.rope, self.set_rows


@dataclass(frozen=True, slots=True)
class GateUp(Chain):
    """`glu`, of two MUL_MATs or MUL_MAT_IDs with the same columns (and ids): f(gate) * up."""

    gate: Tensor
    up: Tensor
    glu: Tensor

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return self.gate, self.up, self.glu


# --- what fuses them ---

C = TypeVar("C", bound=Chain)
Fuser = Callable[[C], Sequence[CallT] | None]


class Fusers(Generic[CallT]):
    """A backend's kernels for chains, and what follows from having them."""

    def __init__(self) -> None:
        self._fusers: dict[type[Chain], list[Callable[[Any], Sequence[CallT] | None]]] = {}

    def fuses(self, kind: type[C]) -> Callable[[Fuser[C, CallT]], Fuser[C, CallT]]:
        """Declare what computes chains of a kind, or gives None for those that it cannot.

        Its calls say which tensors they read and write (`tensors`, `n_written`): no memory of a
        node but of the last, and of those the chain says, is valid. It is asked before tensors have
        addresses, and again when they have.
        """

        def declare(fuser: Fuser[C, CallT]) -> Fuser[C, CallT]:
            self._fusers.setdefault(kind, []).append(fuser)
            return fuser

        return declare

    def calls(self, chain: Chain) -> Sequence[CallT] | None:
        """The calls that compute a chain; None if nothing here does."""
        found = (fuser(chain) for fuser in self._fusers.get(type(chain), ()))
        return next((calls for calls in found if calls is not None), None)


# --- finding chains ---


class _Uses:
    """Which nodes are here, and who reads them."""

    def __init__(self, nodes: Sequence[Tensor], use_counts: UseCounts) -> None:
        self.place = {node: i for i, node in enumerate(nodes)}
        self._counts = use_counts

    def is_inner(self, t: Tensor) -> bool:
        """True for a node here that is read once, and by no user."""
        return t in self.place and self._counts.get(t) == 1 and not t.flags & OUTPUT


def find_chains(
    nodes: Sequence[Tensor], use_counts: UseCounts, fusers: Fusers[CallT]
) -> list[tuple[Chain, Sequence[CallT]]]:
    """The chains among `nodes` that a fuser computes, with its calls; no node is in two.

    `use_counts` are those of the whole graph.
    """
    uses = _Uses(nodes, use_counts)
    taken: set[Tensor] = set()
    found: list[tuple[Chain, Sequence[CallT]]] = []
    for node in nodes:
        for match in _MATCHES.get(node.op, ()):
            chain = match(node, uses)
            if chain is None or node.is_empty or not taken.isdisjoint(chain.nodes):
                continue
            calls = fusers.calls(chain)
            if calls is not None:
                taken.update(chain.nodes)
                found.append((chain, calls))
                break
    return found


def _match_norm_mul(mul: Tensor, uses: _Uses) -> NormMul | None:
    norm = mul.src[0]
    if norm.op in (Op.NORM, Op.RMS_NORM) and uses.is_inner(norm):
        return NormMul(norm, mul)
    return None


def _match_add_norm_mul(mul: Tensor, uses: _Uses) -> AddNormMul | None:
    chain = _match_norm_mul(mul, uses)
    if chain is None:
        return None
    add = chain.norm.src[0]
    if add.op is not Op.ADD or add not in uses.place:
        return None
    return AddNormMul(add, chain.norm, mul, keeps_sum=not uses.is_inner(add))


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


_MATCHES: Final[dict[Op, Sequence[Callable[[Tensor, _Uses], Chain | None]]]] = {
    Op.MUL: (_match_add_norm_mul, _match_norm_mul),
    Op.SET_ROWS: (_match_rope_set_rows,),
    Op.GLU: (_match_gate_up,),
}


# --- before memory is planned ---


def optimize(graph: Graph, fusers: Fusers[CallT]) -> Sequence[KeepAlive]:
    """Put products with the same columns side by side; ask for the data that chains need."""
    _gather_products(graph.nodes)
    wishes: list[KeepAlive] = []
    for chain, _ in find_chains(graph.nodes, graph.use_counts, fusers):
        *before, last = chain.nodes
        for node in before:
            wishes += (
                KeepAlive(src, last)
                for src in node.src
                if src not in chain.nodes and src.root.buffer is None
            )
    return list(dict.fromkeys(wishes))


def _gather_products(nodes: list[Tensor]) -> None:
    """Move each MUL_MAT of a leaf right behind the first one here that reads the same columns.

    So those of queries, keys and values come without a barrier between them. None moves across a
    node that writes into the memory of its sources, as SET_ROWS does.
    """
    last: dict[Tensor, Tensor] = {}  # by columns, the last product that was gathered
    written: set[Tensor] = set()  # by nodes that are views
    moved: list[tuple[Tensor, Tensor]] = []
    for node in nodes:
        if node.op not in VIEW_OPS and node.view_src is not None:
            written.add(node.root)
            for columns in [c for c in last if c.root is node.root]:
                del last[columns]
        if node.op is Op.MUL_MAT and node.src[0].op is Op.NONE:
            weights, columns = node.src
            if weights.root in written:
                continue
            if columns in last:
                moved.append((node, last[columns]))
            last[columns] = node
    for node, behind in moved:
        nodes.remove(node)
        nodes.insert(nodes.index(behind) + 1, node)


# --- once addresses are known ---


def fused_calls(
    nodes: Sequence[Tensor], use_counts: UseCounts, fusers: Fusers[CallT], address_of: AddressOf
) -> tuple[dict[Tensor, Sequence[CallT]], set[Tensor]]:
    """The calls of the chains that are safe where tensors lie, by the node where they run; and the
    other nodes of these chains, which need none."""
    place = {node: i for i, node in enumerate(nodes)}
    fused: dict[Tensor, Sequence[CallT]] = {}
    inner: set[Tensor] = set()
    for chain, calls in find_chains(nodes, use_counts, fusers):
        first, last = place[chain.nodes[0]], place[chain.nodes[-1]]
        between = [n for n in nodes[first:last] if n not in chain.nodes]
        if _is_safe(chain, calls, between, address_of):
            fused[chain.nodes[-1]] = calls
            inner.update(chain.nodes[:-1])
    return fused, inner


def _is_safe(
    chain: Chain, calls: Sequence[CallT], between: Sequence[Tensor], address_of: AddressOf
) -> bool:
    """Whether the chain may run at its end: nothing overlaps that must not."""
    last = chain.nodes[-1]

    def range_of(t: Tensor) -> Range:
        begin = address_of(last, t)
        return begin, begin + t.nbytes

    written = {t for call in calls for t in call.tensors[: call.n_written]}
    read = {t for call in calls for t in call.tensors[call.n_written :]} - written
    writes, reads = [range_of(t) for t in written], [range_of(t) for t in read]
    if any(overlaps(w, reads) for w in writes):
        return False
    if any(overlaps(a, [b]) for a, b in combinations(writes, 2)):
        return False
    return not any(
        overlaps(range_of(node), (*writes, *reads))
        or any(overlaps(range_of(src), writes) for src in node.src)
        for node in between
        if node.op not in VIEW_OPS and not node.is_empty
    )


def calls_in_order(
    nodes: Sequence[Tensor],
    calls_of: Callable[[Tensor], Sequence[CallT]],
    use_counts: UseCounts | None,
    fusers: Fusers[CallT],
    address_of: AddressOf,
) -> Iterator[tuple[Tensor, CallT]]:
    """All calls that compute `nodes`, each with its node: of chains, unless `use_counts` is None,
    and of single nodes by `calls_of`."""
    fused: Mapping[Tensor, Sequence[CallT]] = {}
    inner: set[Tensor] = set()
    if use_counts is not None:
        fused, inner = fused_calls(nodes, use_counts, fusers, address_of)
    for node in nodes:
        if node in inner:
            continue
        for call in fused[node] if node in fused else calls_of(node):
            yield node, call
