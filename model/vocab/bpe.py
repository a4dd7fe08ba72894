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

from ...base.errors import RequestError
from ...kernels.cpu.compiler.jit import Kernel
from ...kernels.cpu.vocab.bpe import ALL_WORDS, NEWLINE_WORDS, NO_WORDS, vocab_bpe
from ...kernels.cpu.vocab.characters import N_CODES, vocab_bytes
from ...kernels.cpu.vocab.split import vocab_split
from ..gguf import Strings
from .merges import MergeTable
from .splitter import Splitter
from .spm import BYTES as BYTE_TEXTS
from .spm import SPACE, SpmPieces
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
        table = MergeTable(tokens, wanted, merges)
        words = table.index
        self.pieces: Sequence[bytes]
        if pre.byte_encode:
            self.pieces, is_other = _pieces(tokens)
            if pre.ignore_merges:
                words = TextIndex(self.pieces, wanted & ~is_other)
            texts = [character.encode() for character in sorted(BYTES, key=BYTES.__getitem__)]
        else:
            self.pieces = SpmPieces(tokens, types)
            texts = list(BYTE_TEXTS)
        symbols = np.array([-1 if id is None else id for id in map(table.index.find, texts)])
        byte_symbols = symbols.astype(np.int32)
        byte_ids = np.where(byte_symbols < len(tokens), byte_symbols, np.int32(-1))
        newlines = NEWLINE_WORDS if pre.escape_spaces else NO_WORDS
        self._tables = (
            *(int(not pre.byte_encode), ALL_WORDS if pre.ignore_merges else newlines),
            *(len(tokens), byte_symbols, byte_ids, *words.arrays, *table.arrays),
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
        n_longest = int(np.diff(ends, prepend=0).max(initial=0))
        symbols, nexts, prevs = np.empty((3, n_longest), np.int32)
        values, heap = np.empty(n_longest, np.int64), np.empty(2 * n_longest, np.int64)
        ids, found = np.empty(len(utf8), np.int32), np.empty(2, np.int64)
        memory = symbols, values, nexts, prevs, heap
        vocab_bpe(utf8, ends, len(ends), *self._tables, *memory, ids, found)
        n_ids, missing = found.tolist()
        if missing >= 0 and not self._skip_unknown:
            raise _no_token(utf8, missing)
        result: list[int] = ids[:n_ids].tolist()
        return result


def _no_token(utf8: U8Array, at: int) -> RequestError:
    before = utf8[:at].tobytes().decode(errors="ignore")
    character = utf8.tobytes().decode()[len(before)]
    return RequestError(
        f"the vocabulary has no token for the byte 0x{utf8[at]:02X} of the character {character!r}"
    )


def _pieces(tokens: Strings) -> tuple[Strings, U8Array]:
    """Return the bytes of the tokens, and 1 for each token with characters that are no bytes."""
    byte_of = np.full(N_CODES, -1, np.int32)
    for character, byte in BYTES.items():
        byte_of[ord(character)] = byte
    data, ends = np.empty_like(tokens.data), np.empty_like(tokens.ends)
    is_other = np.empty(len(tokens), np.uint8)
    vocab_bytes(tokens.data, tokens.begins, tokens.ends, len(tokens), byte_of, data, ends, is_other)
    return Strings(data, tokens.begins, ends), is_other
