"""quants: how blocks of quantised types are laid out, and decoding and encoding them."""

from .layouts import LAYOUTS

__all__ = ["LAYOUTS"]
