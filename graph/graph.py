"""Graphs: nodes in the order of their computation, leafs, and use counts.

The order is ggml's: depth first from each expanded tensor, sources left to right (`ggml.c`,
ggml_visit_parents). Does not know memory or devices. Tested by tests/graph/test_graph_order.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from .op import Op
from .tensor import INPUT, OUTPUT, Tensor, format_shape

_uids = itertools.count(1)


@dataclass(slots=True, eq=False)
class Rewrites:
    """A scheduler's changes to a graph, with the original values.

    `sources` are (node, index, original source), `flags` are (tensor, original flags). `order` is
    the original order of nodes, None if unchanged. `placed` are the tensors that got memory.
    """

    sources: list[tuple[Tensor, int, Tensor]] = field(default_factory=list)
    flags: list[tuple[Tensor, int]] = field(default_factory=list)
    order: list[Tensor] | None = None
    placed: list[Tensor] = field(default_factory=list)


class Graph:
    """A computation graph.

    `nodes` are computed in order. `leafs` are the tensors that no node computes. `use_counts` says
    how often each tensor is a source of a node. `uid` is unique among graphs and changes with every
    expansion.
    """

    def __init__(self, *outputs: Tensor) -> None:
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []
        self.use_counts: dict[Tensor, int] = {}
        self.uid = next(_uids)
        self.rewrites: Rewrites | None = None  # set by a scheduler, cleared by `restore`
        for tensor in outputs:
            self.build_forward_expand(tensor)

    def build_forward_expand(self, tensor: Tensor) -> None:
        """Add `tensor` and all its sources, in ggml's order. Tensors without a name get one."""
        uses = self.use_counts
        self.uid = next(_uids)
        if tensor in uses:
            return
        # an explicit stack: a graph may be deeper than Python can recurse
        uses[tensor] = 0
        stack: list[tuple[Tensor, Iterator[Tensor]]] = [(tensor, iter(tensor.src))]
        while stack:
            node, sources = stack[-1]
            for src in sources:
                if src in uses:
                    uses[src] += 1
                else:
                    uses[src] = 1
                    stack.append((src, iter(src.src)))
                    break
            else:
                stack.pop()
                self._add(node)

    def _add(self, tensor: Tensor) -> None:
        if tensor.op is Op.NONE:
            if not tensor.name:
                tensor.name = f"leaf_{len(self.leafs)}"
            self.leafs.append(tensor)
        else:
            if not tensor.name:
                tensor.name = f"node_{len(self.nodes)}"
            self.nodes.append(tensor)

    def restore(self) -> None:
        """Take back everything that a scheduler changed in this graph and its tensors."""
        rewrites, self.rewrites = self.rewrites, None
        if rewrites is None:
            return
        for node, j, source in reversed(rewrites.sources):
            node.src[j] = source
        for tensor, flags in reversed(rewrites.flags):
            tensor.flags = flags
        if rewrites.order is not None:
            self.nodes[: len(rewrites.order)] = rewrites.order
        for tensor in rewrites.placed:
            tensor.buffer, tensor.offset = None, 0

    def view(self, i0: int, i1: int) -> Graph:
        """A graph of the nodes [i0, i1), without leafs; it shares the use counts of this graph."""
        part = Graph()
        part.nodes = self.nodes[i0:i1]
        part.use_counts = self.use_counts
        return part

    def __len__(self) -> int:
        return len(self.nodes)

    def __str__(self) -> str:
        """A table of all nodes and leafs."""
        lines = [f"graph {self.uid}: {len(self.nodes)} nodes, {len(self.leafs)} leafs"]
        for i, node in enumerate(self.nodes):
            sources = ", ".join(s.name for s in node.src)
            lines.append(
                f"{i:5d} {node.op.name:14} {format_shape(node):28} {_flags(node):2} "
                f"{node.name} <- {sources}"
            )
        for i, leaf in enumerate(self.leafs):
            lines.append(f"{i:5d} {'leaf':14} {format_shape(leaf):28} {_flags(leaf):2} {leaf.name}")
        return "\n".join(lines)


def _flags(t: Tensor) -> str:
    return ("i" if t.flags & INPUT else "") + ("o" if t.flags & OUTPUT else "")
