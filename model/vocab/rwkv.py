"""RWKV's encoding: the longest token that the rest of a text starts with, again and again.

Tokens are bytes. In GGUF files they are written as in Python's source. Knows no special tokens.
Tests: tests/model/test_vocab_rwkv.py.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ...base.errors import RequestError
from ...kernels.cpu.compiler.jit import Kernel
from ...kernels.cpu.vocab.longest import vocab_longest
from ..gguf.strings import Strings
from .table import encodable
from .token_types import TypeArray
from .trie import Trie

_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_NAMED: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}
_NONE: Final = -1


class RwkvEncoder:
    """The ids are those of llama.cpp, except that text never becomes control tokens."""

    kernels: tuple[Kernel, ...] = (vocab_longest,)

    def __init__(self, tokens: Strings, types: TypeArray, unk: int | None) -> None:
        """
        Args:
            tokens: the escaped texts of the tokens. The first of equal texts is used.
            types: a `TokenType` for each token.
            unk: the token for a byte at which no token starts.

        Raises:
            ModelFileError: the texts of the tokens are too long in total.
        """
        self.pieces = [unescaped(token) for token in tokens]
        self._unk = unk
        self._trie = Trie(Strings.of(self.pieces), encodable(types))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens and without lone surrogates.

        Raises:
            RequestError: a byte has no token, and the vocabulary has no unknown token.
        """
        raw = np.frombuffer(text.encode(), np.uint8)
        out = np.empty(len(raw) + 1, np.int32)
        unk = _NONE if self._unk is None else self._unk
        vocab_longest(raw, len(raw), *self._trie.arrays, unk, out)
        ids: list[int] = out[1 : 1 + out[0]].tolist()
        if _NONE in ids:
            raise RequestError("the text has bytes for which the vocabulary has no tokens")
        return ids


def unescaped(token: bytes) -> bytes:
    r"""Return the bytes of a token: `\t`, `\n`, `\r` and `\x41` are one byte, `\'` is `'`."""

    def byte(match: re.Match[bytes]) -> bytes:
        number, letter = match.groups()
        return bytes([int(number, 16)]) if number else _NAMED.get(letter, letter)

    return _ESCAPE.sub(byte, token) if b"\\" in token else token
