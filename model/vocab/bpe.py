"""BPE encoding: text to token ids, from a GGUF file's tokens and merges.

Text is split into words (model/vocab/splitter.py). Then neighbors are merged in the order of the
file's list. Most vocabularies merge bytes. Their tokens are written with a printable character for
each byte, as in GPT-2 (`bytes_to_unicode` in openai/gpt-2, src/encoder.py). Others, such as
Gemma 4's, merge characters; a character without a token becomes byte tokens, whose texts are <0x00>
to <0xFF>. Knows no special tokens. Tests: tests/model/test_vocab_bpe.py and
tests/model/test_vocab_char_bpe.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...kernels.cpu.compiler.jit import Kernel
from ...kernels.cpu.vocab.bpe import ALL_WORDS, NEWLINE_WORDS, NO_WORDS, vocab_bpe
from ...kernels.cpu.vocab.characters import N_CODES, vocab_bytes
from ...kernels.cpu.vocab.split import vocab_split
from ..gguf import Strings
from .merges import Merger, listed_merges
from .pieces import BYTES as BYTE_TEXTS
from .pieces import SPACE, SpmPieces
from .splitter import Splitter
from .table import TextIndex, U8Array, encodable
from .token_types import TypeArray
from .words import PreTokenizer


def _bytes_by_character() -> dict[str, int]:
    """Map Latin-1's printable characters to their bytes, and U+0100 onwards to the other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


BYTES: Final = _bytes_by_character()
"""The byte for each character of a token."""


class BpeEncoder:
    """Merges neighbors in the order of the list, and equal pairs from left to right.

    The ids are those of llama.cpp (`llm_tokenizer_bpe_session`), with two differences: text never
    becomes control or unknown tokens, and words.py splits some texts differently. Text is not
    normalized, as in llama.cpp.
    """

    kernels: tuple[Kernel, ...] = (vocab_bpe, vocab_split)

    def __init__(
        self,
        tokens: Strings,
        types: TypeArray,
        merges: Strings,
        pre: PreTokenizer,
        *,
        lowercase: bool = False,
    ) -> None:
        """
        Args:
            tokens: the texts of the tokens. The first of equal texts is used.
            types: a `TokenType` for each token.
            merges: pairs of texts with a space between.
            pre: splits text into words.
            lowercase: texts are converted to lower case.

        Raises:
            ModelFileError: a merge is not a pair.
        """
        self._splitter = Splitter(pre.patterns)
        self._escape_spaces, self._skip_unknown = pre.escape_spaces, pre.skip_unknown
        self._lowercase = lowercase
        wanted = encodable(types)
        table = listed_merges(tokens, wanted, merges)
        words = table.index
        self.pieces: Sequence[bytes]
        if pre.byte_encode:
            self.pieces, is_other = _pieces(tokens)
            if pre.ignore_merges:
                words = TextIndex(self.pieces, wanted & ~is_other)
            characters = [character.encode() for character in sorted(BYTES, key=BYTES.__getitem__)]
            byte_symbols = table.index.find_all(characters)
        else:
            self.pieces = SpmPieces(tokens, types)
            byte_symbols = table.index.find_all(BYTE_TEXTS)
        newlines = NEWLINE_WORDS if pre.escape_spaces else NO_WORDS
        self._merger = Merger(
            *(table, len(tokens), byte_symbols),
            by_character=not pre.byte_encode,
            whole_words=ALL_WORDS if pre.ignore_merges else newlines,
            words=words,
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens and without lone surrogates.

        Raises:
            RequestError: the vocabulary has no token for a byte, and bytes are not skipped.
        """
        if self._escape_spaces:
            text = text.replace(" ", SPACE)
        if self._lowercase:
            text = "".join(map(str.lower, text))  # a final sigma is like others
        utf8 = np.frombuffer(text.encode(), np.uint8)
        ends = self._splitter.ends(utf8)
        ids = self._merger.encode(utf8, ends, skip_unknown=self._skip_unknown)
        found: list[int] = ids.tolist()
        return found


def _pieces(tokens: Strings) -> tuple[Strings, U8Array]:
    """Return the bytes of the tokens, and 1 for each token with characters that are no bytes."""
    byte_of = np.full(N_CODES, -1, np.int32)
    for character, byte in BYTES.items():
        byte_of[ord(character)] = byte
    data, ends = np.empty_like(tokens.data), np.empty_like(tokens.ends)
    is_other = np.empty(len(tokens), np.uint8)
    vocab_bytes(tokens.data, tokens.begins, tokens.ends, len(tokens), byte_of, data, ends, is_other)
    return Strings(data, tokens.begins, ends), is_other
