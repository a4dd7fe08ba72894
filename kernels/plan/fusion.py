"""Fusion: chains of nodes that one kernel computes at once, with the bits of single kernels.

    FUSERS = Fusers[CpuCall]()

    @FUSERS.fuses(NormMul)
    def norm_mul(chain: NormMul) -> Sequence[CpuCall] | None: ...   # None: no kernel for this one

A chain runs in the place of its last node. So `optimize`, which runs before memory is planned,
requests that the chain's sources stay alive until then. `fused_calls` runs later, with addresses.
If a chain would overwrite memory that other nodes still need, its nodes are computed one by one.

A result that only the chain reads is not written at all. An observed node
(`Scheduler.set_eval_callback`) can only be the last one of a chain.
Knows no kernels: each backend that compiles plans declares its own in its `Fusers`.
Tested by tests/kernels/test_fusion.py and test_cpu_fusion.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, Generic, NamedTuple, TypeVar

from ...graph.graph import Graph
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor
from ...sched.backend import KeepAlive
from .calls import CallT
from .chains import NodeChain, matches
from .steps import AddressOf, Range, overlaps

# --- a backend's kernels ---

C = TypeVar("C", bound=NodeChain)
Fuser = Callable[[C], Sequence[CallT] | None]


class Fusers(Generic[CallT]):
    """A backend's kernels for chains: those of `others`, and more."""

    def __init__(self, others: Fusers[CallT] | None = None) -> None:
        self._fusers: dict[type[NodeChain], list[Callable[[Any], Sequence[CallT] | None]]] = {}
        if others is not None:
            self._fusers |= {kind: [*fusers] for kind, fusers in others._fusers.items()}

    def fuses(self, kind: type[C]) -> Callable[[Fuser[C, CallT]], Fuser[C, CallT]]:
        """Declare a function from a chain to its calls; it returns None if it has no kernel.

        The calls name the tensors they read and write (`tensors`, `n_written`). Of the chain's
        nodes, only the last one and those in `chain.tensors` have memory. The function is called
        before tensors have addresses, and again afterwards.
        """

        def declare(fuser: Fuser[C, CallT]) -> Fuser[C, CallT]:
            self._fusers.setdefault(kind, []).append(fuser)
            return fuser

        return declare

    def calls(self, chain: NodeChain) -> Sequence[CallT] | None:
        """The calls that compute a chain; None if there is no kernel for it."""
        found = (fuser(chain) for fuser in self._fusers.get(type(chain), ()))
        return next((calls for calls in found if calls is not None), None)


# --- finding chains ---


def find_chains(graph: Graph, fusers: Fusers[CallT]) -> list[tuple[NodeChain, Sequence[CallT]]]:
    """The chains of a graph that have a fuser, with their calls, in the order of their last nodes.

    No node is in two chains. Longer chains come first, then earlier ones.
    """
    taken: set[Tensor] = set()
    found: dict[Tensor, tuple[NodeChain, Sequence[CallT]]] = {}
    chains = [chain for chains in matches(graph) for chain in chains]
    for chain in sorted(chains, key=lambda chain: -len(chain.nodes)):
        calls = fusers.calls(chain) if taken.isdisjoint(chain.nodes) else None
        if calls is not None:
            taken.update(chain.nodes)
            found[chain.nodes[-1]] = chain, calls
    return [found[node] for node in graph.nodes if node in found]


# --- before memory is planned ---


def optimize(graph: Graph, fusers: Fusers[CallT]) -> Sequence[KeepAlive]:
    """Gather products with the same columns. Return requests to keep chains' sources alive."""
    _gather_products(graph.nodes)
    wishes: list[KeepAlive] = []
    for chain, _ in find_chains(graph, fusers):
        *before, last = chain.nodes
        for node in before:
            wishes += (
                KeepAlive(src, last)
                for src in node.src
                if src not in chain.nodes and src.root.buffer is None
            )
    return list(dict.fromkeys(wishes))


def _gather_products(nodes: list[Tensor]) -> None:
    """Move each MUL_MAT of a leaf directly after the previous one that reads the same columns.

    So the products of queries, keys and values run without a barrier between them. No product moves
    across a node that writes into the memory of its sources, as SET_ROWS does.
    """
    last: dict[Tensor, Tensor] = {}  # the last product that was gathered, by columns
    written: set[Tensor] = set()  # roots whose memory a node has written through a view
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


class FusedCalls(NamedTuple, Generic[CallT]):
    """The chains of a graph at some addresses.

    Attributes:
        calls: the calls of the chains that are safe there, by the last node of each.
        inner: the other nodes of these chains, which need no calls.
        unsafe: the calls of the other chains. At other addresses they may be safe.
    """

    calls: dict[Tensor, Sequence[CallT]]
    inner: set[Tensor]
    unsafe: list[CallT]


def fused_calls(graph: Graph, fusers: Fusers[CallT], address_of: AddressOf) -> FusedCalls[CallT]:
    """Return the calls of a graph's chains."""
    nodes = graph.nodes
    place = {node: i for i, node in enumerate(nodes)}
    found = FusedCalls[CallT]({}, set(), [])
    for chain, calls in find_chains(graph, fusers):
        first, last = place[chain.nodes[0]], place[chain.nodes[-1]]
        between = [n for n in nodes[first:last] if n not in chain.nodes]
        if _is_safe(chain, calls, between, address_of):
            found.calls[chain.nodes[-1]] = calls
            found.inner.update(chain.nodes[:-1])
        else:
            found.unsafe.extend(calls)
    return found


def _is_safe(
    chain: NodeChain, calls: Sequence[CallT], between: Sequence[Tensor], address_of: AddressOf
) -> bool:
    """True if the chain may run in the place of its last node: no conflicting ranges overlap."""
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
