"""Weights repacked for the CPU's matrix products.

Sixteen rows are side by side, so that one vector holds the same few values of each. A product of 16
rows with a column needs no sum across lanes. Quantized weights are multiplied as integers, by
activations that are quantized once for all readers. Importing this fills the table of packed ops.
"""

from . import gate_up, moves, products

__all__ = ["gate_up", "moves", "products"]
