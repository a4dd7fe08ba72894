"""ops: which kernels compute which op, a module for each family; importing fills the tables."""

from . import data, elementwise, rope, rows, sort

__all__ = ["data", "elementwise", "rope", "rows", "sort"]
