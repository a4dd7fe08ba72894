"""BPE encoding: text to token ids by the tokenizers library, from a GGUF file's tokens and merges.

Text is split into words (model/vocab/words.py). Each byte of a word becomes a printable character,
as in GPT-2 (`bytes_to_unicode` in openai/gpt-2, src/encoder.py). Then neighbors are merged in the
order of the file's list. Knows no special tokens. Tests: tests/model/test_vocab_bpe.py.
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
    """Map Latin-1's printable characters to their bytes, and U+0100 onwards to the other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


BYTES: Final = _bytes_by_character()
"""The byte for each character of a token."""

N_PART: Final = 1 << 16
"""Characters encoded in one call."""


class BpeEncoder:
    """Merges neighbors in the order of the list, and equal pairs from left to right.

    The ids are those of llama.cpp (`llm_tokenizer_bpe_session`), with two differences: text never
    becomes control or unknown tokens, and words.py splits some texts differently. Text is not
    normalized, as in llama.cpp.
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
            tokens: the texts of the tokens, in characters that stand for bytes. The first of equal
                texts is used. A text that is not UTF-8 is not used.
            types: a `TokenType` for each token.
            merges: pairs of tokens with a space between. Pairs that form no token are ignored.
            pre: splits text into words.

        Raises:
            ModelFileError: a merge is not a pair.
        """
        texts = [token.decode(errors="replace") for token in tokens]
        self.pieces = [_piece(text, token) for text, token in zip(texts, tokens, strict=True)]
        ids = ids_of_texts(texts, types)
        self._missing = {byte for character, byte in BYTES.items() if character not in ids}
        model = BPE(ids, pairs_of(merges, ids), ignore_merges=pre.ignore_merges)
        self._tokenizer = Tokenizer(model)
        cuts = [Split(Regex(pattern), "isolated") for pattern in pre.patterns]
        as_characters = ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = InOrder([*cuts, as_characters])

    def words(self, text: str) -> list[str]:
        """Return the words of a text, with a character for each byte."""
        assert self._tokenizer.pre_tokenizer is not None
        return [word for word, _ in self._tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens and without lone surrogates.

        Raises:
            RequestError: the vocabulary has no token for a byte.
        """
        missing = self._missing.intersection(text.encode()) if self._missing else None
        if missing:
            raise RequestError(
                f"the text has the byte 0x{min(missing):02X}, for which the vocabulary has no token"
            )
        ids: list[int] = []
        for part in parts_of(text):
            ids += self._tokenizer.encode(part, add_special_tokens=False).ids
        return ids


def ids_of_texts(texts: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Return the ids of the tokens that a text may become, the first of equal ones."""
    ids: dict[str, int] = {}
    never_encoded = (TokenType.CONTROL, TokenType.UNKNOWN)
    for id, (text, type) in enumerate(zip(texts, types, strict=True)):
        if type not in never_encoded and "\N{REPLACEMENT CHARACTER}" not in text:
            ids.setdefault(text, id)
    return ids


def parts_of(text: str) -> Iterator[str]:
    """Split a text into parts for one library call each.

    A call holds the interpreter lock, needs a hundred bytes per character, and fails for a word of
    millions of characters. A part ends between a letter or digit and a space or newline, where
    nearly every pre-tokenizer ends a word. In a text without such places it ends anywhere.
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
    except KeyError:  # a token with other characters is plain text
        return token


def pairs_of(merges: Sequence[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges whose parts and result are tokens, as the library can fail at others."""
    pairs = []
    for merge in dict.fromkeys(merges):  # keeps the first of equal merges
        left, space, right = merge.partition(" ")
        if not space:
            raise ModelFileError(
                f"tokenizer.ggml.merges[{merges.index(merge)}] is {merge[:40]!r}, "
                "must be two tokens with a space between them"
            )
        if left in ids and right in ids and left + right in ids:
            pairs.append((left, right))
    return pairs
