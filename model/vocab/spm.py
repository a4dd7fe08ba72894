"""SPM encoding: text to token ids by the scores of the tokens, as sentencepiece's BPE.

Knows no special tokens and no space prefix. Tests: tests/model/test_vocab_spm.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ...kernels.cpu.compiler.jit import Kernel
from ...kernels.cpu.vocab.bpe import NO_WORDS, vocab_bpe
from ..gguf import Strings
from .merges import I32Array, Merger, derived_merges
from .pieces import BYTES, SPACE, SpmPieces
from .table import TextIndex, encodable
from .token_types import TokenType, TypeArray

_BYTE_LENGTH: Final = 6  # of the texts of BYTE tokens
_UNUSED: Final = (TokenType.UNUSED, TokenType.UNDEFINED)


class SpmEncoder:
    """Merges pairs of tokens as SPM's BPE does: the best score first, ties from left to right.

    Characters without a token become byte tokens. The ids are those of llama.cpp
    (`llm_tokenizer_spm_session`), with two differences: text never becomes control or unknown
    tokens, and unused tokens are replaced by the tokens that they are merged from.
    """

    kernels: tuple[Kernel, ...] = (vocab_bpe,)

    def __init__(
        self,
        tokens: Strings,
        scores: npt.NDArray[np.float32],
        types: TypeArray,
        unk: int | None,
    ) -> None:
        """
        Args:
            tokens: the texts of the tokens. The first of equal texts is used.
            scores: `[n]`, without NaN.
            types: a `TokenType` for each token.
            unk: the token for characters without a token, if the vocabulary has no byte tokens.
        """
        self.pieces = SpmPieces(tokens, types)
        # byte tokens are found by their text, as in llama.cpp, because types may be missing
        may_be_byte = (tokens.ends - tokens.begins == _BYTE_LENGTH).astype(np.uint8)
        byte_ids = TextIndex(tokens, may_be_byte).find_all(BYTES)
        has_bytes = bool((byte_ids >= 0).all())
        wanted = encodable(types)
        if has_bytes:
            wanted[byte_ids] = 0
        self._n_tokens = len(tokens)
        table, parts = derived_merges(tokens, wanted, _ranks(scores))
        self._symbols = table.index
        self._merger = Merger(
            *(table, len(tokens), byte_ids if has_bytes else np.full_like(byte_ids, -1)),
            by_character=True,
            whole_words=NO_WORDS,
            unk=None if has_bytes else unk,
        )
        unused = np.isin(types, _UNUSED) & (parts[:, 0] >= 0)
        self._is_unused = unused if unused.any() else None
        self._parts = {id: parts[id].tolist() for id in np.flatnonzero(unused).tolist()}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens and without lone surrogates.

        Raises:
            RequestError: a character has no token, and the vocabulary has no bytes and no unknown
                token.
        """
        utf8 = np.frombuffer(text.replace(" ", SPACE).encode(), np.uint8)
        ids = self._merger.encode(utf8, np.array([len(utf8)], np.int32))
        found: list[int] = ids.tolist()
        if self._is_unused is not None and self._is_unused[ids].any():
            return [part for id in found for part in self._used(id)]
        return found

    def _used(self, id: int) -> list[int]:
        """Return the tokens that replace a symbol, or itself if it is a used token."""
        found: list[int] = []
        rest = [id]
        while rest:
            id = rest.pop()
            if id in self._parts:
                rest += reversed(self._parts[id])
            else:
                found += [id] if id < self._n_tokens else self._character(id)
        return found

    def _character(self, symbol: int) -> list[int]:
        """Return the tokens of a character that is no token."""
        utf8 = self._symbols.text(symbol)
        ids: list[int] = self._merger.encode(utf8, np.array([len(utf8)], np.int32)).tolist()
        return ids


def _ranks(scores: npt.NDArray[np.float32]) -> I32Array:
    """Return int32s in the opposite order of the scores. They are equal for equal scores."""
    bits = (scores + np.float32(0)).view(np.int32)  # -0 becomes 0
    ascending = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)
    return ~ascending
