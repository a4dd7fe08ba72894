"""vocab: encoding of text as kernels. They run as plain Python with LAMELLA_NO_JIT."""

from .access import VOCAB_KERNELS

__all__ = ["VOCAB_KERNELS"]
