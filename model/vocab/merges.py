"""The merges of a BPE vocabulary as tables for kernels.

A merge joins two symbols, texts that are usually tokens. A text of a merge that is no token is a
symbol, too: what is left of it becomes the tokens of its bytes, as in llama.cpp. Knows no text to
encode. Tests: tests/model/test_vocab_bpe.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...base.errors import ModelFileError
from ...kernels.cpu.vocab.access import Argument
from ...kernels.cpu.vocab.merges import BRIDGE_BYTES, vocab_merges
from ..gguf import Strings
from .table import TextIndex, U8Array

_PAIR_WORDS: Final = 2  # int64s of an entry


class MergeTable:
    """The symbols and merges of a vocabulary.

    Attributes:
        index: the symbols by their texts. Ids from the number of tokens on are no tokens.
        arrays: `pairs`, `pairs_mask` and `bridges` of kernels/cpu/vocab/merges.py.
    """

    def __init__(self, tokens: Strings, wanted: U8Array, merges: Strings) -> None:
        """
        Args:
            tokens: the texts of the tokens. The first of equal texts is used.
            wanted: [n_tokens], 0 for tokens that are no symbols.
            merges: pairs of texts with a space between.

        Raises:
            ModelFileError: a merge is not a pair.
        """
        self.index = TextIndex(tokens, wanted)
        others = self._fill(merges)
        if others:
            texts = Strings.of([*tokens, *others])
            self.index = TextIndex(texts, np.append(wanted, np.ones(len(others), np.uint8)))
            self._fill(merges)

    def _fill(self, merges: Strings) -> list[bytes]:
        """Fill the tables. Return texts that are not in the index yet."""
        n_entries = 1 << (2 * len(merges)).bit_length()
        pairs = np.full(_PAIR_WORDS * n_entries, -1, np.int64)
        bridges = np.zeros(BRIDGE_BYTES, np.uint8)
        failed, invalid = np.zeros(len(merges), np.uint8), np.empty(1, np.int64)
        text = np.empty(int((merges.ends - merges.begins).max(initial=0)), np.uint8)
        vocab_merges(
            *(merges.data, merges.begins, merges.ends, len(merges)),
            *self.index.arrays,
            *(pairs, n_entries - 1, bridges, text, failed, invalid),
        )
        if invalid[0] >= 0:
            merge = merges[int(invalid[0])].decode(errors="replace")
            raise ModelFileError(
                f"tokenizer.ggml.merges[{invalid[0]}] is {merge[:40]!r}, "
                "must be two tokens with a space between them"
            )
        self.arrays: tuple[Argument, ...] = pairs, n_entries - 1, bridges
        others: dict[bytes, None] = {}
        for i in np.flatnonzero(failed).tolist():
            left, _, right = merges[i].partition(b" ")
            if left and right:
                others |= dict.fromkeys((left, right, left + right))
        return [text for text in others if text not in self.index]
