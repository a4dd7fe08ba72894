"""Scheduled graphs for people: an explanation as text, a graph as a picture.

In the text, each split is a block with a head. Each node has a line with its place and reason, and
a line with its sources. Lines break at 120 columns. Tested by tests/sched/test_explain_render.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from ...graph.dot import to_dot
from ...graph.tensor import Tensor
from ..scheduled import ScheduledGraph
from .from_graph import explain
from .record import CopyFacts, Explanation, NodeFacts, SourceFacts, SplitFacts

_COLORS = ("#c9e7c4", "#f6d9ae", "#e3cdeb", "#f4c9c9", "#d6d6d6")  # of backends, in turn
_CPU_COLOR = "#c6dcf2"

COLUMNS: Final = 120
_INDENT: Final = " " * 6

Widths = tuple[int, int, int, int, int]


def draw(scheduled: ScheduledGraph) -> str:
    """The graph in DOT, colored by backend (the CPU is blue), with its copies."""
    backends = scheduled.backends
    colors = {b: _COLORS[i % len(_COLORS)] for i, b in enumerate(backends[:-1])}
    copies = {t.dst: t.src for run in scheduled.runs for t in run.transfers}

    def color(t: Tensor) -> str:
        return colors.get(scheduled.backend_of(t), _CPU_COLOR)

    return to_dot(scheduled.graph, color, copies)


def describe(scheduled: ScheduledGraph) -> str:
    """A scheduled graph as text; LAMELLA_DEBUG=3 prints it."""
    return "\n".join(lines(explain(scheduled)))


def lines(e: Explanation) -> Iterator[str]:
    """The lines of an explanation: totals, each split with its copies and nodes, memory."""
    for line in _lines(e):
        # names from a file may contain control characters
        yield line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


def _lines(e: Explanation) -> Iterator[str]:
    yield (
        f"graph: {_count(e.n_nodes, 'node')}, {_count(e.n_splits, 'split')}, "
        f"{_count(e.n_copies, 'copy', 'copies')} of {size_text(e.bytes_copied)}"
    )
    widths = _widths(e)
    for split in e.splits:
        yield ""
        yield from _split_lines(e, split)
        for node in e.nodes[split.first : split.last + 1]:
            yield from _node_lines(e, node, widths)
    if e.memory:
        yield ""
        yield "compute memory"
        yield from _memory_lines(e)


def _widths(e: Explanation) -> Widths:
    """The widths of op, name, shape, device and cause of a node, up to a limit each."""
    rows = [(n.op, n.name, _shape(n), n.device, n.cause) for n in e.nodes]
    most = (14, 18, 18, 6, 6)
    op, name, shape, device, cause = (
        min(max((len(row[i]) for row in rows), default=0), most[i]) for i in range(5)
    )
    return op, name, shape, device, cause


def _split_lines(e: Explanation, split: SplitFacts) -> Iterator[str]:
    nodes = f"nodes {split.first}..{split.last}" if split.last >= split.first else "no nodes"
    yield f"split {split.index}: {split.device}, {nodes}, {split.n_computed} computed"
    yield from _broken(f"  begins: {split.why}", "    ")
    for copy in (e.copies[i] for i in split.copies):
        yield from _broken(f"  copies: {_copy(copy)}", "    ")


def _copy(copy: CopyFacts) -> str:
    at_most = "at most " if copy.kind == "experts" else ""
    ahead = ", while the split before computes" if copy.ahead else ""
    took = "" if copy.seconds is None else f", about {1e6 * copy.seconds:.0f} us"
    return (
        f"{copy.source} ({copy.kind}), {at_most}{size_text(copy.n_bytes)} from "
        f"{copy.from_device}{took}{ahead}"
    )


def _node_lines(e: Explanation, node: NodeFacts, widths: Widths) -> Iterator[str]:
    op, name, shape, device, cause = widths
    what = f"{node.name:{name}} {_shape(node)}"
    head = f"{node.index:4d} {node.op:{op}} {what:{name + 1 + shape}} {node.device:{device}}"
    line = f"{head} {node.cause:{cause}} {node.why}"
    if len(line) <= COLUMNS:
        yield line
    else:
        yield f"{head} {node.cause}"
        yield from _broken(_INDENT + node.why, _INDENT)
    if not node.is_view:
        sources = ", ".join(_source(e, source) for source in node.sources)
        place = f"; in place of {node.in_place_of}" if node.in_place_of else ""
        yield from _broken(f"{_INDENT}<- {sources}{place}", _INDENT + "   ")


def _source(e: Explanation, source: SourceFacts) -> str:
    if source.copy is None:
        return source.name
    copied = e.copies[source.copy].source
    return f"{source.name} (copy)" if copied == source.name else f"{source.name} (copy of {copied})"


def _broken(line: str, indent: str) -> list[str]:
    """A line, broken into several if it is too long; names stay whole."""
    return wrap(
        line,
        COLUMNS,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _shape(node: NodeFacts) -> str:
    n = max((i + 1 for i, size in enumerate(node.ne) if size != 1), default=1)
    return f"[{', '.join(map(str, node.ne[:n]))}] {node.type}"


def _memory_lines(e: Explanation) -> Iterator[str]:
    for buffer in e.memory:
        in_place = sum(r.over is not None for r in buffer.rectangles)
        apart = sum(r.size for r in buffer.rectangles if r.over is None)
        yield (
            f"  {buffer.buffer_type} {buffer.chunk}: {size_text(buffer.size)} for "
            f"{_count(len(buffer.rectangles), 'tensor')} of {size_text(apart)}, {in_place} in place"
            f" ({size_text(buffer.reserved)} reserved)"
        )


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def size_text(n: int) -> str:
    """A number of bytes with a unit; exact below 10 KiB."""
    if n < 10 * 1024:
        return f"{n} bytes"
    value, units = n / 1024, ["KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.1f} {units[0]}"
