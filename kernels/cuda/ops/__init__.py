"""ops: which kernels compute which op, a module for each family; importing fills the tables."""

from . import activations, attention, data, elementwise, matrix, rope, rows, sort

__all__ = ["activations", "attention", "data", "elementwise", "matrix", "rope", "rows", "sort"]
