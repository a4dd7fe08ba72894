"""Scheduled graphs for people: as text, with each split's inputs and each node's backend and cause,
and as a picture."""

from __future__ import annotations

from ..graph.dot import to_dot
from ..graph.op import VIEW_OPS
from ..graph.tensor import Tensor, format_shape
from .scheduled import ScheduledGraph
from .split import Split

_COLORS = ("#c9e7c4", "#f6d9ae", "#e3cdeb", "#f4c9c9", "#d6d6d6")  # one a backend, in turn
_CPU_COLOR = "#c6dcf2"


def draw(scheduled: ScheduledGraph) -> str:
    """The graph in DOT, coloured by backend (the CPU is blue), with the copies it computes with."""
    backends = scheduled.backends
    colors = {b: _COLORS[i % len(_COLORS)] for i, b in enumerate(backends[:-1])}
    copies = {t.dst: t.src for run in scheduled.runs for t in run.transfers}

    def color(t: Tensor) -> str:
        return colors.get(scheduled.backend_of(t), _CPU_COLOR)

    return to_dot(scheduled.graph, color, copies)


def describe(scheduled: ScheduledGraph) -> str:
    """What LAMELLA_DEBUG=3 prints of a graph."""
    lines = [
        f"graph {scheduled.graph.uid}: {len(scheduled.graph.nodes)} nodes, "
        f"{scheduled.n_splits} splits, copy {scheduled.copy_index}"
    ]
    for i, split in enumerate(scheduled.splits):
        lines.append(_describe_split(i, split))
        for j, node in enumerate(split.graph.nodes, split.i_start):
            if node.op not in VIEW_OPS:
                lines.append(_describe_node(scheduled, j, node))
    return "\n".join(lines)


def _describe_split(i: int, split: Split) -> str:
    inputs = ", ".join(f"{t.name} ({t.nbytes} bytes)" for t in split.inputs)
    head = f"  split {i}: {split.backend.name}, nodes {split.i_start}..{split.i_end - 1}"
    return f"{head}, copies {inputs}" if inputs else head


def _describe_node(scheduled: ScheduledGraph, j: int, node: Tensor) -> str:
    def place(t: Tensor) -> str:
        return f"[{scheduled.backend_of(t).name} {scheduled.causes[t]}]"

    sources = ", ".join(f"{src.name} {place(src)}" for src in node.src)
    return f"  {j:5d} {node.op.name:14} {node.name} {format_shape(node)} {place(node)} <- {sources}"
