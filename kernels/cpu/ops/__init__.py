"""ops: the kernels, a module for each family; importing this fills the table of ops."""

from . import activations, attention, data, elementwise, matrix, rope, rows, sort

__all__ = ["activations", "attention", "data", "elementwise", "matrix", "rope", "rows", "sort"]
