"""What each character of a text becomes before WordPiece: a table for the kernel.

The table has what the normalizer and the pre-tokenizer of the tokenizers library make of single
characters, as BERT's rules treat each alone. One case differs: the library orders accents that
follow each other before it removes them, which matters for accents that it does not remove (of the
scripts of Bali, Sunda, Batak and Korea, and of music). Tests: tests/model/test_vocab_wordpiece.py.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from ...kernels.cpu.vocab import wordpiece as kernel

_N_CODE_POINTS: Final = 0x110000
_SURROGATES: Final = range(0xD800, 0xE000)  # no text has them


class BertCharacters:
    """A table that grows by pages as texts need them. Thread-safe: a page is the same each time.

    Attributes:
        entries: uint8, the entry of each character; see the kernel.
        pages: uint8, 1 for each page of entries that is complete.
    """

    def __init__(self, lowercase: bool, strip_accents: bool) -> None:
        from tokenizers.normalizers import BertNormalizer  # noqa: PLC0415 - slow to import
        from tokenizers.pre_tokenizers import BertPreTokenizer  # noqa: PLC0415

        self.entries = np.zeros(_N_CODE_POINTS * kernel.ENTRY, np.uint8)
        self.pages = np.zeros(_N_CODE_POINTS // kernel.PAGE, np.uint8)
        self._normalizer = BertNormalizer(strip_accents=strip_accents, lowercase=lowercase)
        self._splitter = BertPreTokenizer()
        self._complete(0)

    def add(self, text: str) -> None:
        """Complete the pages that a text needs."""
        code_points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        needed = np.zeros_like(self.pages)
        needed[code_points // kernel.PAGE] = 1
        for page in np.flatnonzero(needed > self.pages).tolist():
            self._complete(page)

    def _complete(self, page: int) -> None:
        for code_point in range(page * kernel.PAGE, (page + 1) * kernel.PAGE):
            if code_point not in _SURROGATES:
                entry = np.frombuffer(self._entry(chr(code_point)), np.uint8)
                at = code_point * kernel.ENTRY
                self.entries[at : at + len(entry)] = entry
        self.pages[page] = 1

    def _entry(self, character: str) -> bytes:
        text = self._normalizer.normalize_str(character)
        normal = text.strip(" ")
        if text and not normal:
            return bytes([kernel.SPACE])
        is_word = text != normal or len(self._splitter.pre_tokenize_str(f"a{normal}")) > 1
        raw = normal.encode()
        assert len(raw) <= kernel.ENTRY - kernel.TEXT, f"{character!r} becomes {normal!r}"
        return bytes([kernel.ALONE if is_word else kernel.LETTER, len(normal), len(raw), *raw])


bert_characters = cache(BertCharacters)
"""The table for (lowercase, strip_accents), shared by all vocabularies."""
