"""quants: the layouts of blocks of quantised types. kernels/cpu decodes and encodes them."""

from .layouts import LAYOUTS

__all__ = ["LAYOUTS"]
