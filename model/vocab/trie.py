"""Finds all tokens that a text starts with. The kernels do the work (kernels/cpu/vocab/trie.py).

Tests: tests/model/test_vocab_trie.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...base.errors import ModelFileError
from ...kernels.cpu.vocab.access import Argument
from ...kernels.cpu.vocab.trie import N_NODES_MAX, vocab_trie
from ..gguf.strings import Strings
from .table import U8Array

_BYTES_PER_NODE: Final = 3  # of many tokens: most share their first bytes with others


class Trie:
    """A trie of texts. Kernels get it as `*trie.arrays`. Immutable and thread-safe."""

    def __init__(self, texts: Strings, wanted: U8Array) -> None:
        """
        Args:
            texts: the texts by id. Empty ones are never found. The first of equal ones is.
            wanted: [n], 0 for texts that shall not be found.

        Raises:
            ModelFileError: the texts need too many nodes.
        """
        n_bytes = int((texts.ends - texts.begins)[wanted != 0].sum())
        n_nodes = np.zeros(1, np.int64)
        n_ids = n_bytes // _BYTES_PER_NODE + 2
        while n_nodes[0] == 0:
            if n_ids > 2 * N_NODES_MAX:
                raise ModelFileError(
                    f"tokenizer.ggml.tokens has {n_bytes} bytes in tokens of different texts, "
                    f"must be at most {N_NODES_MAX}"
                )
            n_ids = min(n_ids, N_NODES_MAX)
            n_slots = 1 << (2 * n_ids - 1).bit_length()
            slots, ids = np.zeros(n_slots, np.int64), np.full(n_ids, -1, np.int32)
            data, begins, ends = texts.data, texts.begins, texts.ends
            vocab_trie(
                data, begins, ends, len(texts), wanted, slots, n_slots - 1, ids, n_ids, n_nodes
            )
            n_ids = 2 * n_ids + 1
        self.arrays: tuple[Argument, ...] = slots, n_slots - 1, ids
