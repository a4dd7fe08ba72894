"""Graphs in Graphviz's DOT language: `dot -Tsvg graph.dot -o graph.svg`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .graph import Graph
from .op import VIEW_OPS, Op
from .tensor import Tensor, format_shape

_NO_COPIES: Mapping[Tensor, Tensor] = {}


def to_dot(
    graph: Graph,
    color: Callable[[Tensor], str] | None = None,
    copies: Mapping[Tensor, Tensor] = _NO_COPIES,
) -> str:
    """The graph as DOT text: boxes for nodes, ellipses for leafs, dashed boxes for views.

    Args:
        graph: what to draw.
        color: fill color of a tensor, for instance by device; None: all white.
        copies: further leafs, each with the tensor that it copies; a dashed arrow joins the two.
    """
    names = {t: f"t{i}" for i, t in enumerate([*graph.leafs, *graph.nodes, *copies])}
    lines = ["digraph lamella {", '  node [style=filled, fontname="monospace"];']
    for t, name in names.items():
        shape = "ellipse" if t.op is Op.NONE else "box"
        style = "filled,dashed" if t.op in VIEW_OPS else "filled"
        what = format_shape(t) if t.op is Op.NONE else f"{t.op.name} {format_shape(t)}"
        fill = color(t) if color else "white"
        label = _escape(f"{t.name}\n{what}")
        lines.append(
            f'  {name} [shape={shape}, style="{style}", fillcolor="{fill}", label="{label}"];'
        )
    for t, name in names.items():
        for j, src in enumerate(t.src):
            if src in names:
                lines.append(f'  {names[src]} -> {name} [label="{j}"];')
        if t in copies and copies[t] in names:
            lines.append(f'  {names[copies[t]]} -> {name} [style=dashed, label="copy"];')
    lines.append("}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
