"""Finds the ids of tokens by their texts.

    index = TextIndex(tokens, encodable(types))    # tokens: see model.gguf.Strings
    index.find(b"hello")                           # an id, or None

The table is built and searched by kernels, as a vocabulary has up to 260 thousand tokens. Kernels
get it as `*index.arrays`. Knows no kinds of vocabularies. Tests: tests/model/test_vocab_table.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ...kernels.cpu.vocab.access import Argument
from ...kernels.cpu.vocab.index import vocab_find, vocab_index
from ..gguf.strings import Strings
from .token_types import TokenType

U8Array: TypeAlias = npt.NDArray[np.uint8]

_NEVER_ENCODED: Final = (TokenType.CONTROL, TokenType.UNKNOWN)


class TextIndex:
    """A hash table from texts to ids. The first of equal texts wins. Immutable and thread-safe."""

    def __init__(self, texts: Strings, wanted: U8Array | None = None) -> None:
        """
        Args:
            texts: the texts by id. Empty ones are found, too.
            wanted: [n], 0 for texts that shall not be found. Default: all are found.
        """
        if wanted is None:
            wanted = np.ones(len(texts), np.uint8)
        n_slots = 1 << (2 * len(texts) - 1).bit_length()
        spans = np.stack((texts.begins, texts.ends), axis=1)
        slots, mask = np.empty(n_slots, np.int64), n_slots - 1
        vocab_index(texts.data, spans.ravel(), len(texts), wanted, slots, mask)
        self._texts = texts
        self.arrays: tuple[Argument, ...] = texts.data, spans.ravel(), slots, mask

    def find(self, text: bytes) -> int | None:
        """Return the id of a text; None if there is none."""
        found = np.empty(1, np.int64)
        vocab_find(np.frombuffer(text, np.uint8), len(text), *self.arrays, found)
        id = int(found[0])
        return None if id < 0 else id

    def find_all(self, texts: Iterable[bytes]) -> npt.NDArray[np.int32]:
        """Return the ids of texts, -1 for those that are not found."""
        ids = [self.find(text) for text in texts]
        return np.array([-1 if id is None else id for id in ids], np.int32)

    def text(self, id: int) -> U8Array:
        """Return the bytes of a text."""
        return self._texts.data[self._texts.begins[id] : self._texts.ends[id]]

    def __contains__(self, text: bytes) -> bool:
        return self.find(text) is not None


def encodable(types: Sequence[int] | npt.NDArray[np.integer]) -> U8Array:
    """Return 1 for each token that plain text may become, 0 for control and unknown tokens."""
    return (~np.isin(types, _NEVER_ENCODED)).astype(np.uint8)
