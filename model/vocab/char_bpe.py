"""BPE encoding over characters: vocabularies of Gemma 4, whose merges are not over bytes.

A space is U+2581 in tokens, as in SPM. Neighbors are merged within each line, in the order of the
file's list. A character without a token becomes byte tokens, whose texts are <0x00> to <0xFF>.
Knows no special tokens. Tests: tests/model/test_vocab_char_bpe.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tokenizers import Tokenizer
from tokenizers.models import BPE

from ...base.errors import RequestError
from .bpe import ids_of_texts, pairs_of, parts_of
from .spm import BYTES, SPACE
from .vocab import TokenType

_NEWLINES: Final = re.compile(r"(\n+)")


class CharBpeEncoder:
    """Merges neighbors in the order of the list, and equal pairs from left to right.

    The ids are those of llama.cpp (`llm_tokenizer_bpe_session` without `byte_encode`), except that
    text never becomes control or unknown tokens.
    """

    def __init__(
        self, tokens: Sequence[bytes], types: Sequence[int], merges: Sequence[str]
    ) -> None:
        """
        Args:
            tokens: the texts of the tokens. The first of equal texts is used.
            types: a `TokenType` for each token.
            merges: pairs of tokens with a space between. Pairs that form no token are ignored.

        Raises:
            ModelFileError: a merge is not a pair.
        """
        self.pieces = [
            BYTES[token]
            if type == TokenType.BYTE and token in BYTES
            else token.replace(SPACE.encode(), b" ")
            for token, type in zip(tokens, types, strict=True)
        ]
        self._ids = ids_of_texts([token.decode(errors="replace") for token in tokens], types)
        self._has_bytes = all(text.decode() in self._ids for text in BYTES)
        model = BPE(self._ids, pairs_of(merges, self._ids), byte_fallback=True)
        self._tokenizer = Tokenizer(model)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens and without lone surrogates.

        Raises:
            RequestError: a character has no token, and the vocabulary lacks byte tokens.
        """
        text = text.replace(" ", SPACE)
        missing = set() if self._has_bytes else set(text) - self._ids.keys()
        if missing:
            raise RequestError(f"the vocabulary has no token for {min(missing)!r}")
        ids: list[int] = []
        for line in filter(None, _NEWLINES.split(text)):
            if line[0] == "\n" and line in self._ids:
                ids.append(self._ids[line])
                continue
            for part in parts_of(line):
                ids += self._tokenizer.encode(part, add_special_tokens=False).ids
        return ids
