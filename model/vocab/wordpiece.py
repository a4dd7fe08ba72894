"""WordPiece encoding: vocabularies of BERT.

Text is normalized and split into words. A word becomes the longest token that it starts with, then
the longest token of the rest, and so on. In GGUF files the first token of a word starts with
U+2581, and other tokens lack the "##" of BERT's own files. Knows no special tokens.
Tests: tests/model/test_vocab_wordpiece.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ...base.errors import RequestError
from ...kernels.cpu.compiler.jit import Kernel
from ...kernels.cpu.vocab.wordpiece import ENTRY, IDS_PER_BYTE, MARK, vocab_wordpiece
from ..gguf.strings import Strings
from .bert_characters import bert_characters
from .pieces import SpmPieces
from .table import encodable
from .token_types import TypeArray
from .trie import Trie

N_WORD_MAX: Final = 100
"""Characters of the longest word that is not unknown: `max_input_chars_per_word` of all models."""

_NONE: Final = -1  # the id of unknown words for the kernel
_WORD: Final = np.frombuffer(bytes(MARK).ljust(ENTRY * (N_WORD_MAX + 1)), np.uint8)


class WordPieceEncoder:
    """Encodes as the models' own tokenizers do (`BertTokenizer` of Hugging Face transformers).

    llama.cpp (`llm_tokenizer_wpm_session`) differs: it has no limit for the length of words, its
    normalization of rare characters differs, and text can become control tokens.
    """

    kernels: tuple[Kernel, ...] = (vocab_wordpiece,)

    def __init__(
        self,
        tokens: Strings,
        types: TypeArray,
        unk: int | None,
        *,
        lowercase: bool,
        strip_accents: bool,
    ) -> None:
        """
        Args:
            tokens: the texts of the tokens. The first of equal texts is used.
            types: a `TokenType` for each token.
            unk: the token for words that are not made of tokens.
            lowercase: convert text to lower case.
            strip_accents: remove accents.

        Raises:
            ModelFileError: the texts of the tokens are too long in total.
        """
        self.pieces = SpmPieces(tokens, types)
        self._unk = unk
        self._trie = Trie(tokens, encodable(types))
        self._characters = bert_characters(lowercase, strip_accents)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens and without lone surrogates.

        Raises:
            RequestError: a word is not made of tokens, and the vocabulary has no unknown token.
        """
        raw = np.frombuffer(text.encode(), np.uint8)
        out = np.empty(IDS_PER_BYTE * len(raw) + 1, np.int32)
        if not self._encode(raw, out):
            self._characters.add(text)
            assert self._encode(raw, out), "all pages are complete"
        ids = out[1 : 1 + out[0]]
        if self._unk is None and (ids == _NONE).any():
            raise RequestError("the text has words for which the vocabulary has no tokens")
        found: list[int] = ids.tolist()
        return found

    def _encode(self, text: npt.NDArray[np.uint8], out: npt.NDArray[np.int32]) -> bool:
        """Write the number of ids and the ids. Return False if the table lacks a page."""
        unk = _NONE if self._unk is None else self._unk
        table, word = self._characters, _WORD.copy()
        vocab_wordpiece(
            *(text, len(text), table.entries, table.pages, *self._trie.arrays),
            *(word, N_WORD_MAX, unk, out),
        )
        return bool(out[0] >= 0)
