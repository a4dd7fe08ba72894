"""Merges of symbols as tables for kernels, and the ids of merged words.

A symbol is a text that is usually a token. A symbol that is no token becomes the tokens of its
bytes, as in llama.cpp. Tests: tests/model/test_vocab_bpe.py and tests/model/test_vocab_spm.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from ...base.errors import ModelFileError, RequestError
from ...kernels.cpu.vocab.access import Argument
from ...kernels.cpu.vocab.bpe import vocab_bpe
from ...kernels.cpu.vocab.index import BASE, HASH_MASK
from ...kernels.cpu.vocab.merges import BRIDGE_BYTES, vocab_merges, vocab_parts
from ..gguf import Strings
from .table import TextIndex, U8Array

I32Array = npt.NDArray[np.int32]

_PAIR_WORDS: Final = 2  # int64s of an entry
_PAIRS_PER_TOKEN: Final = 2  # of most SPM vocabularies


@dataclass(frozen=True, slots=True)
class MergeTable:
    """The symbols and merges of a vocabulary.

    Attributes:
        index: the symbols by their texts. Ids from the number of tokens on are no tokens.
        pairs, mask, bridges: see kernels/cpu/vocab/merges.py.
    """

    index: TextIndex
    pairs: npt.NDArray[np.int64]
    mask: int
    bridges: U8Array

    @classmethod
    def empty(cls, index: TextIndex, n_pairs: int) -> MergeTable:
        """Return a table with room for `n_pairs`."""
        n_entries = 1 << (2 * n_pairs - 1).bit_length()
        pairs = np.full(_PAIR_WORDS * n_entries, -1, np.int64)
        return cls(index, pairs, n_entries - 1, np.zeros(BRIDGE_BYTES, np.uint8))


def listed_merges(tokens: Strings, wanted: U8Array, merges: Strings) -> MergeTable:
    """Return the merges of a file's list.

    Args:
        tokens: the texts of the tokens. The first of equal texts is used.
        wanted: [n_tokens], 0 for tokens that are no symbols.
        merges: pairs of texts with a space between.

    Raises:
        ModelFileError: a merge is not a pair.
    """
    table, failed = _listed(TextIndex(tokens, wanted), merges)
    others = dict[bytes, None]()
    for i in failed:
        left, _, right = merges[i].partition(b" ")
        if left and right:
            others |= dict.fromkeys((left, right, left + right))
    index = _extended(table.index, tokens, wanted, list(others))
    return table if index is table.index else _listed(index, merges)[0]


def _listed(index: TextIndex, merges: Strings) -> tuple[MergeTable, list[int]]:
    """Return the table, and the merges of texts that are not in the index."""
    n = len(merges)
    table = MergeTable.empty(index, n)
    failed, invalid = np.zeros(n, np.uint8), np.empty(1, np.int64)
    text = np.empty(_longest(merges), np.uint8)
    vocab_merges(
        *(merges.data, merges.begins, merges.ends, n, *index.arrays),
        *(table.pairs, table.mask, table.bridges, text, failed, invalid),
    )
    if invalid[0] >= 0:
        merge = merges[int(invalid[0])].decode(errors="replace")
        raise ModelFileError(
            f"tokenizer.ggml.merges[{invalid[0]}] is {merge[:40]!r}, "
            "must be two tokens with a space between them"
        )
    return table, np.flatnonzero(failed).tolist()


def derived_merges(
    tokens: Strings, wanted: U8Array, ranks: I32Array
) -> tuple[MergeTable, I32Array]:
    """Return the merges of all pairs of symbols that together are a token.

    Args:
        tokens: the texts of the tokens. The first of equal texts is used.
        wanted: [n_tokens], 0 for tokens that are no symbols.
        ranks: [n_tokens], the order of the merges to a token. The lowest comes first.

    Returns:
        the table, and the two symbols that each token is merged from, [n_tokens, 2], or -1.
    """
    index = TextIndex(tokens, wanted)
    table, parts, unknown = _derived(index, tokens, ranks)
    others = [c.encode() for i in unknown for c in tokens[i].decode(errors="ignore")]
    index = _extended(index, tokens, wanted, others)
    if index is not table.index:
        table, parts, _ = _derived(index, tokens, ranks)
    return table, parts


def _derived(
    index: TextIndex, tokens: Strings, ranks: I32Array
) -> tuple[MergeTable, I32Array, list[int]]:
    """As `derived_merges`, for one index. Return also the tokens with characters that it lacks."""
    n = len(tokens)
    bases = repeat(BASE, _longest(tokens))
    powers = accumulate(bases, lambda power, base: power * base & HASH_MASK, initial=1)
    powers_array = np.fromiter(powers, np.int64)
    room, n_pairs = _PAIRS_PER_TOKEN * n, np.full(1, -1, np.int64)
    while True:
        table = MergeTable.empty(index, room)
        parts, unknown = np.full(2 * n, -1, np.int32), np.zeros(n, np.uint8)
        vocab_parts(
            *(*index.arrays, n, ranks, powers_array, table.pairs, table.mask, room),
            *(table.bridges, parts.ravel(), unknown, n_pairs),
        )
        if n_pairs[0] >= 0:
            return table, parts.reshape(n, 2), np.flatnonzero(unknown).tolist()
        room *= 2


def _extended(index: TextIndex, tokens: Strings, wanted: U8Array, others: list[bytes]) -> TextIndex:
    """Return an index that also has other texts; the same one if it already has all of them."""
    missing = [text for text in dict.fromkeys(others) if text not in index]
    if not missing:
        return index
    flags = np.append(wanted, np.ones(len(missing), np.uint8))
    return TextIndex(Strings.of([*tokens, *missing]), flags)


def _longest(texts: Strings) -> int:
    return int((texts.ends - texts.begins).max(initial=0))


class Merger:
    """Merges the symbols of words, and returns the ids of the results. Thread-safe."""

    def __init__(
        self,
        table: MergeTable,
        n_tokens: int,
        byte_symbols: I32Array,
        *,
        by_character: bool,
        whole_words: int,
        words: TextIndex | None = None,
        unk: int | None = None,
    ) -> None:
        """
        Args:
            table: the merges.
            n_tokens: the number of tokens.
            byte_symbols: the symbol of each byte, or -1.
            by_character: merge characters instead of bytes.
            whole_words: see `vocab_bpe`.
            words: the index of whole words. Default: that of the symbols.
            unk: the token for symbols that are no tokens. Default: those of their bytes.
        """
        byte_ids = np.where(byte_symbols < n_tokens, byte_symbols, np.int32(-1))
        arrays = (table.index if words is None else words).arrays
        self._tables: tuple[Argument, ...] = (
            *(int(by_character), whole_words, n_tokens, byte_symbols, byte_ids),
            *(-1 if unk is None else unk, *arrays, table.pairs, table.mask, table.bridges),
        )

    def encode(self, utf8: U8Array, ends: I32Array, *, skip_unknown: bool = False) -> I32Array:
        """Return the ids of the words of a text. `ends` are the ends of the words.

        Raises:
            RequestError: the vocabulary has no token for a byte. `skip_unknown` skips it instead.
        """
        n_longest = int(np.diff(ends, prepend=0).max(initial=0))
        symbols, nexts, prevs = np.empty((3, n_longest), np.int32)
        values, heap = np.empty(n_longest, np.int64), np.empty(2 * n_longest, np.int64)
        ids, found = np.empty(len(utf8), np.int32), np.empty(2, np.int64)
        memory = symbols, values, nexts, prevs, heap
        vocab_bpe(utf8, ends, len(ends), *self._tables, *memory, ids, found)
        n_ids, missing = found.tolist()
        if missing >= 0 and not skip_unknown:
            raise _no_token(utf8, missing)
        return ids[:n_ids]


def _no_token(utf8: U8Array, at: int) -> RequestError:
    before = utf8[:at].tobytes().decode(errors="ignore")
    character = utf8.tobytes().decode()[len(before)]
    return RequestError(
        f"the vocabulary has no token for the byte 0x{utf8[at]:02X} of the character {character!r}"
    )
