"""ops: which kernels compute which op, a module for each family; importing fills the tables."""

from . import activations, data, elementwise, matrix, rope, rows, sort

__all__ = ["activations", "data", "elementwise", "matrix", "rope", "rows", "sort"]
