"""Unigram encoding: vocabularies of T5 and XLM-RoBERTa (bge-m3, multilingual-e5).

Text is normalized by a map of characters that is part of the file, and split so that the sum of the
tokens' scores is the highest. A space is U+2581 in tokens. Knows no special tokens.
Tests: tests/model/test_vocab_unigram.py.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ...base.errors import ModelFileError, RequestError
from ...kernels.cpu.compiler.jit import Kernel
from ...kernels.cpu.vocab.unigram import vocab_normalize, vocab_unigram
from ..gguf.strings import Strings
from .pieces import SpmPieces
from .table import U8Array
from .token_types import TokenType, TypeArray
from .trie import Trie

_UNKNOWN_PENALTY: Final = 10.0  # sentencepiece's kUnkPenalty
_SCORE_MAX: Final = 1e30  # sums of so large scores stay finite
_N_NORMALIZED_MAX: Final = 1 << 30  # bytes; the kernels count them in int32s
_ENCODED: Final = (TokenType.NORMAL, TokenType.USER_DEFINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """How a text is normalized before it is encoded.

    Attributes:
        charsmap: sentencepiece's `precompiled_charsmap`; empty to replace no characters.
        add_prefix: start with a space.
        merge_spaces: replace several spaces by one, and remove those at both ends.
    """

    charsmap: bytes
    add_prefix: bool
    merge_spaces: bool


class UnigramEncoder:
    """Encodes as sentencepiece does. Scores are summed in float64, as in Hugging Face's tokenizers.

    The ids are those of llama.cpp (`llm_tokenizer_ugm_session`), except that text never becomes
    unused tokens. Hugging Face's tokenizers also lose some accents after replaced characters.
    """

    kernels: tuple[Kernel, ...] = (vocab_normalize, vocab_unigram)

    def __init__(
        self,
        tokens: Strings,
        scores: npt.NDArray[np.float32],
        types: TypeArray,
        unk: int | None,
        normalization: Normalization,
    ) -> None:
        """
        Args:
            tokens: the texts of the tokens. The first of equal texts is used.
            scores: `[n]`, without NaN. User-defined tokens have a score of 0 instead.
            types: a `TokenType` for each token.
            unk: the token for characters without a token.
            normalization: how a text is normalized.

        Raises:
            ModelFileError: the map of characters is invalid, or the texts of the tokens are too
                long in total.
        """
        self.pieces = SpmPieces(tokens, types)
        self._unk = unk
        self._none = len(tokens)
        self._trie = Trie(tokens, np.isin(types, _ENCODED).astype(np.uint8))
        known = np.clip(scores.astype(np.float64), -_SCORE_MAX, _SCORE_MAX)
        lowest = known[types == TokenType.NORMAL].min(initial=_SCORE_MAX)
        known[types == TokenType.USER_DEFINED] = 0
        self._scores = np.append(known, np.float32(lowest - _UNKNOWN_PENALTY))
        self._units, self._replacements = _charsmap(normalization.charsmap)
        self._normalization = normalization

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens and without lone surrogates.

        Raises:
            RequestError: a character has no token, and the vocabulary has no unknown token.
        """
        raw = self.normalized(text)
        n, room = len(raw), len(raw) + 1
        out = np.empty(room, np.int32)
        vocab_unigram(
            *(raw, n, *self._trie.arrays, self._scores, self._none),
            *(np.empty(room), np.empty(room, np.int32), np.empty(room, np.int32), out),
        )
        found = out[1 : 1 + out[0]]
        unknown = found == self._none
        if unknown.any():
            if self._unk is None:
                raise RequestError("the text has characters for which the vocabulary has no tokens")
            found[unknown] = self._unk
        ids: list[int] = found.tolist()
        return ids

    def normalized(self, text: str) -> U8Array:
        """Return the normalized text in UTF-8, with U+2581 for spaces.

        Raises RequestError if it is too long.
        """
        raw = np.frombuffer(text.encode(), np.uint8)
        options = self._normalization
        n_out, n_max = np.empty(1, np.int64), 3 * len(raw) + 64
        while True:
            out = np.empty(n_max, np.uint8)
            vocab_normalize(
                *(raw, len(raw), self._units, len(self._units)),
                *(self._replacements, len(self._replacements)),
                *(int(options.add_prefix), int(options.merge_spaces), out, n_max, n_out),
            )
            if n_out[0] >= 0:
                return out[: n_out[0]]
            n_max *= 2
            if n_max > _N_NORMALIZED_MAX:
                raise RequestError(f"the normalized text has more than {n_max // 2} bytes")


def _charsmap(blob: bytes) -> tuple[npt.NDArray[np.int32], U8Array]:
    """Return the units of the map's trie and its replacements, which end with a NUL.

    Raises:
        ModelFileError: the trie is larger than the map.
    """
    if not blob:
        return np.empty(0, np.int32), np.zeros(1, np.uint8)
    n_trie = struct.unpack_from("<I", blob)[0] if len(blob) >= 4 else len(blob)
    if n_trie % 4 or n_trie + 4 > len(blob):
        raise ModelFileError(
            f"tokenizer.ggml.precompiled_charsmap has {len(blob)} bytes, and a trie of {n_trie} "
            "bytes, must be a multiple of 4 that fits in the map"
        )
    units = np.frombuffer(blob, "<i4", n_trie // 4, 4).astype(np.int32)
    return units, np.frombuffer(blob[4 + n_trie :] + b"\0", np.uint8)
