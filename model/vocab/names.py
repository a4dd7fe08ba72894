"""Splits a text at the names of special tokens.

As llama.cpp's `tokenizer_st_partition` (src/llama-vocab.cpp). Knows no kinds of tokens.
Tests: tests/model/test_vocab_text.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ...kernels.cpu.vocab.names import vocab_names
from ..gguf import Strings
from .trie import Trie

_ROOM: Final = 256  # names of most texts


class Names:
    """The names of special tokens. Immutable and thread-safe.

    Attributes:
        ids: the token of each name that is found.
    """

    def __init__(self, tokens: Strings, ids: Sequence[int]) -> None:
        """
        Args:
            tokens: the texts of all tokens.
            ids: the tokens to find, ascending. The first of equal ones is found, empty ones and
                those that are not UTF-8 never.
        """
        named = [(tokens[id], id) for id in ids]
        named = [(name, id) for name, id in named if name and _is_utf8(name)]
        named.sort(key=lambda pair: -len(pair[0]))
        names = [name for name, _ in named]
        self.ids = {name.decode(): id for name, id in reversed(named)}  # the first of equal ones
        first_bytes = np.zeros(256, np.uint8)
        first_bytes[[name[0] for name in names]] = 1
        trie = Trie(Strings.of(names), np.ones(len(names), np.uint8))
        self._id_list = [id for _, id in named]
        self._lengths = np.array([len(name) for name in names], np.int64)
        self._tables = first_bytes, *trie.arrays, self._lengths

    def partition(self, text: str) -> list[str | int]:
        """Split a text into special tokens and the texts between them.

        A longer name takes precedence anywhere in the text, and the first of equally long ones.
        """
        if not self.ids or not text:
            return [text] if text else []
        utf8 = text.encode()
        begins, names = self._found(utf8)
        parts: list[str | int] = []
        at = 0
        for i in np.argsort(begins).tolist():
            begin, name = int(begins[i]), int(names[i])
            if begin > at:
                parts.append(utf8[at:begin].decode())
            parts.append(self._id_list[name])
            at = begin + int(self._lengths[name])
        if at < len(utf8):
            parts.append(utf8[at:].decode() if at else text)
        return parts

    def _found(self, utf8: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Return the positions and numbers of the names that are found, in any order."""
        n, counts = len(utf8), np.zeros(2, np.int64)
        raw, taken = np.frombuffer(utf8, np.uint8), np.zeros(n, np.uint8)
        room = min(n, _ROOM)
        while True:
            heap, begins = np.empty((2, room), np.int64)
            names = np.empty(room, np.int32)
            vocab_names(raw, n, *self._tables, room, heap, taken, begins, names, counts)
            n_places, n_found = counts.tolist()
            if n_places <= room:
                return begins[:n_found], names[:n_found]
            room = n_places


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
