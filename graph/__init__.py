"""graph: types, tensors, ops with their shape rules, graphs. Does not know memory or devices."""

from . import ops
from .dot import to_dot
from .graph import Graph
from .op import GluOp, Op, RopeMode, SortOrder, UnaryOp
from .tensor import INPUT, OUTPUT, Tensor
from .types import GGMLType

__all__ = [
    "GGMLType",
    "GluOp",
    "Graph",
    "INPUT",
    "OUTPUT",
    "Op",
    "RopeMode",
    "SortOrder",
    "Tensor",
    "UnaryOp",
    "ops",
    "to_dot",
]
