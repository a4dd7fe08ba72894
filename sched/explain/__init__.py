"""explain: where each part of a scheduled graph is and runs, and why.

- `record`: an explanation as plain values, and its JSON
- `from_graph`: makes the record from a scheduled graph
- `reasons`: the reason in words for each cause
- `render`: the record as lines of text, the graph as DOT

Reads scheduled graphs and changes nothing.
"""

from .from_graph import explain
from .record import Explanation
from .render import describe, draw, lines

__all__ = ["Explanation", "describe", "draw", "explain", "lines"]
