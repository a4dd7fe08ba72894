"""Weights repacked for the CPU's matrix products.

Sixteen rows are interleaved, so that one vector has the same few values of each row. So a product
of 16 rows with a column needs no sum across lanes. Quantized weights are multiplied as integers,
with activations that are quantized once for all readers. Importing this fills the table of packed
ops.
"""

from . import biased, gate_up, moves, products

__all__ = ["biased", "gate_up", "moves", "products"]
