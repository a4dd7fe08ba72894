"""quants: how blocks of quantised types are laid out; kernels/cpu decodes and encodes them."""

from .layouts import LAYOUTS

__all__ = ["LAYOUTS"]
