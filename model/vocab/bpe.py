"""BPE encoding: text to token ids by the tokenizers library, from a GGUF file's tokens and merges.

The text is cut into words (model/vocab/words.py), each byte of a word becomes a character that can
be printed, as in GPT-2 (`bytes_to_unicode` in openai/gpt-2, src/encoder.py), and neighbours are
merged in the order of the file's list. Knows no special tokens: model/vocab/vocab.py does.
Tests: tests/model/test_vocab_bpe.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as InOrder

from ...base.errors import ModelFileError, RequestError
from .vocab import TokenType
from .words import PreTokenizer


def _bytes_by_character() -> dict[str, int]:
    """The printable characters of Latin-1 are themselves; the other bytes follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


BYTES: Final = _bytes_by_character()
"""The byte that each character of a token stands for."""

N_PART: Final = 1 << 16
"""Characters that are encoded at a time."""


class BpeEncoder:
    """Merges neighbours, the pair that is first in the list first and the leftmost of equals.

    The ids are llama.cpp's (`llm_tokenizer_bpe_session`) but for control and unknown tokens, which
    are never found in text, and for what words.py does otherwise. As there, text is not normalised.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        types: Sequence[int],
        merges: Sequence[str],
        pre: PreTokenizer,
    ) -> None:
        """
        Args:
            tokens: the text of each, in characters that stand for bytes. Of equal ones the first is
                used, one that is no UTF-8 never.
            types: a `TokenType` for each.
            merges: pairs of tokens with a space between; those that make no token are left out.
            pre: how text is cut into words.

        Raises:
            ModelFileError: a merge is no pair.
        """
        texts = [token.decode(errors="replace") for token in tokens]
        self.pieces = [_piece(text, token) for text, token in zip(texts, tokens, strict=True)]
        ids: dict[str, int] = {}
        out_of_reach = (TokenType.CONTROL, TokenType.UNKNOWN)
        for id, (text, type) in enumerate(zip(texts, types, strict=True)):
            if type not in out_of_reach and "\N{REPLACEMENT CHARACTER}" not in text:
                ids.setdefault(text, id)
        self._missing = {byte for character, byte in BYTES.items() if character not in ids}
        model = BPE(ids, _pairs(merges, ids), ignore_merges=pre.ignore_merges)
        self._tokenizer = Tokenizer(model)
        cuts = [Split(Regex(pattern), "isolated") for pattern in pre.patterns]
        as_characters = ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = InOrder([*cuts, as_characters])

    def words(self, text: str) -> list[str]:
        """The words of a text, each byte a character."""
        assert self._tokenizer.pre_tokenizer is not None
        return [word for word, _ in self._tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    def encode(self, text: str) -> list[int]:
        """The ids of a text without special tokens; none for "". No lone surrogates.

        Raises:
            RequestError: a byte for which the vocabulary has no token.
        """
        missing = self._missing.intersection(text.encode()) if self._missing else None
        if missing:
            raise RequestError(
                f"the text has the byte 0x{min(missing):02X}, for which the vocabulary has no token"
            )
        ids: list[int] = []
        for part in _parts(text):
            ids += self._tokenizer.encode(part, add_special_tokens=False).ids
        return ids


def _parts(text: str) -> Iterator[str]:
    """Parts for a call each: one holds Python's lock, needs a hundred bytes a character, and gives
    up at a word of millions of them.

    A part ends between a letter or a digit and a space or a new line, where every way to cut text
    ends a word; in a text without such places it ends anywhere.
    """
    begin = 0
    while len(text) - begin > N_PART:
        end = begin + N_PART
        at = _last_blank(text, begin, end)
        while at > begin and not text[at - 1].isalnum():
            at = _last_blank(text, begin, at)
        end = at if at > begin else end
        yield text[begin:end]
        begin = end
    yield text[begin:]


def _last_blank(text: str, begin: int, end: int) -> int:
    return max(text.rfind(" ", begin, end), text.rfind("\n", begin, end))


def _piece(text: str, token: bytes) -> bytes:
    try:
        return bytes(map(BYTES.__getitem__, text))
    except KeyError:  # what is not in these characters stands for itself
        return token


def _pairs(merges: Sequence[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    """The merges of tokens to tokens: the library takes no others, and fails at some."""
    pairs = []
    for merge in dict.fromkeys(merges):  # of equal ones the first counts
        left, space, right = merge.partition(" ")
        if not space:
            raise ModelFileError(
                f"tokenizer.ggml.merges[{merges.index(merge)}] is {merge[:40]!r}, "
                "it must be two tokens with a space between them"
            )
        if left in ids and right in ids and left + right in ids:
            pairs.append((left, right))
    return pairs
