"""Graphs in Graphviz's DOT language: `dot -Tsvg graph.dot -o graph.svg`."""

from __future__ import annotations

from collections.abc import Callable

from .graph import Graph
from .tensor import Tensor, format_shape, is_view_op


def to_dot(graph: Graph, color: Callable[[Tensor], str] | None = None) -> str:
    """The graph as DOT text: boxes for nodes, ellipses for leafs, dashed boxes for views.

    Args:
        graph: what to draw.
        color: fill colour of a tensor, for instance by device; white where None.
    """
    names = {t: f"t{i}" for i, t in enumerate([*graph.leafs, *graph.nodes])}
    leafs = set(graph.leafs)
    lines = ["digraph lamella {", '  node [style=filled, fontname="monospace"];']
    for t, name in names.items():
        shape = "ellipse" if t in leafs else "box"
        style = "filled,dashed" if is_view_op(t.op) else "filled"
        label = _escape(f"{t.name}\n{t.op.name} {format_shape(t)}")
        fill = color(t) if color else "white"
        lines.append(
            f'  {name} [shape={shape}, style="{style}", fillcolor="{fill}", label="{label}"];'
        )
    for node in graph.nodes:
        for j, src in enumerate(node.src):
            if src in names:
                lines.append(f'  {names[src]} -> {names[node]} [label="{j}"];')
    lines.append("}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
