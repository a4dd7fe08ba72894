"""The texts of tokens as sentencepiece writes them: U+2581 is a space, <0x41> is a byte.

Tests: tests/model/test_vocab_text.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

from ..gguf import Strings
from .token_types import TokenType, TypeArray

SPACE: Final = "▁"  # U+2581 stands for a space in the text of tokens
_SPACE: Final = SPACE.encode()
_BYTE: Final = int(TokenType.BYTE)

BYTES: Final = {b"<0x%02X>" % byte: bytes([byte]) for byte in range(256)}
"""The byte for the text of each token of type BYTE."""


class SpmPieces(Sequence[bytes]):
    """The bytes of the text of each token, computed on access."""

    def __init__(self, tokens: Strings, types: TypeArray) -> None:
        self._tokens, self._types = tokens, types.tobytes()

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, id: int) -> bytes: ...
    @overload
    def __getitem__(self, id: slice) -> Sequence[bytes]: ...
    def __getitem__(self, id: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(id, slice):
            return [self[i] for i in range(*id.indices(len(self)))]
        return _piece(self._tokens[id], self._types[id])

    def __iter__(self) -> Iterator[bytes]:
        return map(_piece, self._tokens, self._types)  # faster than by index


def _piece(token: bytes, type: int) -> bytes:
    if type == _BYTE and token in BYTES:
        return BYTES[token]
    return token.replace(_SPACE, b" ")
