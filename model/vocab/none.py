"""No vocabulary: models that take and return token ids only.

Tests: tests/model/test_vocab_load.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...base.errors import RequestError
from ...kernels.cpu.compiler.jit import Kernel


class NoEncoder:
    """Encodes no text. The texts of all tokens are empty."""

    kernels: tuple[Kernel, ...] = ()

    def __init__(self, n_tokens: int) -> None:
        self.pieces: Sequence[bytes] = [b""] * n_tokens

    def encode(self, text: str) -> list[int]:
        """Raise RequestError."""
        raise RequestError("this model has no vocabulary: send token ids instead of text")
