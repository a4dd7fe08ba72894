"""Weights repacked for the CPU's matrix products.

Sixteen rows lie side by side, so that one vector holds the same few values of each: a product of
16 rows with a column needs no sum across lanes. Integers are multiplied as integers, by activations
that were quantised once for all their readers. Importing this fills the table of packed ops.
"""

from . import gate_up, moves, products

__all__ = ["gate_up", "moves", "products"]
