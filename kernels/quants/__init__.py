"""quants: the layouts of blocks of quantized types. kernels/cpu decodes and encodes them."""

from .layouts import LAYOUTS

__all__ = ["LAYOUTS"]
