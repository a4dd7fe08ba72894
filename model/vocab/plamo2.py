"""PLaMo 2's encoding: the tokens with the highest sum of scores, in units of 0.0001.

A character that no token fits becomes byte tokens, whose texts are <0x00> to <0xFF>. Text is not
normalized, and a space is a space in tokens. Knows no special tokens.
Tests: tests/model/test_vocab_plamo2.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ...base.errors import ModelFileError
from ...kernels.cpu.compiler.jit import Kernel
from ...kernels.cpu.vocab.plamo2 import UNUSABLE_COST, vocab_plamo2
from ..gguf.strings import Strings
from .pieces import BYTES
from .table import encodable
from .token_types import TokenType, TypeArray
from .trie import Trie

_UNITS: Final = 1e4


class Plamo2Encoder:
    """Encodes as the model's own tokenizer does (tokenization_plamo.py of pfnet/plamo-2-8b).

    llama.cpp (`llm_tokenizer_plamo2`) differs: it removes a byte order mark at the start, and text
    can become control tokens.
    """

    kernels: tuple[Kernel, ...] = (vocab_plamo2,)

    def __init__(self, tokens: Strings, scores: npt.NDArray[np.float32], types: TypeArray) -> None:
        """
        Args:
            tokens: the texts of the tokens. The first of equal texts is used.
            scores: `[n]`, without NaN.
            types: a `TokenType` for each token.

        Raises:
            ModelFileError: a byte has no token, or the texts of the tokens are too long in total.
        """
        is_byte = types == TokenType.BYTE
        self.pieces = [BYTES[t] if b else t for t, b in zip(tokens, is_byte, strict=True)]
        ids = {token: id for id, token in enumerate(tokens) if is_byte[id]}
        for text in BYTES:
            if text not in ids:
                raise ModelFileError(f"tokenizer.ggml.tokens lacks the BYTE token {text.decode()}")
        self._bytes = np.array([ids[text] for text in BYTES], np.int32)
        self._trie = Trie(tokens, encodable(types) & ~is_byte)
        costs = np.where(np.isfinite(scores), -_UNITS * scores.astype(np.float64), UNUSABLE_COST)
        self._costs = np.rint(costs.clip(-UNUSABLE_COST, UNUSABLE_COST)).astype(np.int64)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens and without lone surrogates."""
        raw = np.frombuffer(text.encode(), np.uint8)
        n, room = len(raw), len(raw) + 1
        out = np.empty(room, np.int32)
        memory = np.empty(room, np.int64), np.empty(room, np.int32), np.empty(room, np.int32)
        vocab_plamo2(raw, n, *self._trie.arrays, self._costs, self._bytes, *memory, out)
        ids: list[int] = out[1 : 1 + out[0]].tolist()
        return ids
