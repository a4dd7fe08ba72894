"""A vocabulary: text to token ids and back, whole or as a stream, special tokens included.

As llama.cpp's `tokenize`, `tokenizer_st_partition` and `token_to_piece` (src/llama-vocab.cpp);
where it differs, a docstring says so. Knows no file, no model, no chat template and no sampling,
and not how an `Encoder` cuts plain text into tokens. Tests: tests/model/test_vocab_text.py.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from ...base.errors import RequestError


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`; 1 to 6 are sentencepiece's own numbers too."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Encoder(Protocol):
    """The way from plain text to tokens and back that a kind of vocabularies has."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of text that each token stands for, by id."""

    def encode(self, text: str, /) -> list[int]:
        """The ids of a text without special tokens; none for "". No lone surrogates.

        Raises:
            RequestError: a character for which the vocabulary has no tokens.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The ids with a meaning of their own, and whether `tokenize` adds the first two."""

    bos: int | None
    eos: int | None
    eot: int | None
    unk: int | None
    add_bos: bool
    add_eos: bool
    eog: frozenset[int]  # those that end a generation


class Vocab:
    """A vocabulary of `n_tokens` tokens. Immutable, for any number of threads."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        types: Sequence[int],
        encoder: Encoder,
        special: SpecialTokens,
        *,
        add_space_prefix: bool,
    ) -> None:
        """
        Args:
            tokens: the text of each, as it stands in the file.
            types: a `TokenType` for each.
            encoder: of the same tokens.
            special: ids within `tokens`; no `add_` flag without its id.
            add_space_prefix: text at the start and after special tokens gets a space in front.
        """
        self.n_tokens = len(tokens)
        self.bos, self.eos, self.eot, self.unk = special.bos, special.eos, special.eot, special.unk
        self.add_bos, self.add_eos = special.add_bos, special.add_eos
        self.eog = special.eog
        self.add_space_prefix = add_space_prefix
        self._tokens = tokens
        self._encoder = encoder
        hidden = ids_of_types(types, TokenType.CONTROL, TokenType.UNKNOWN)
        user_defined = ids_of_types(types, TokenType.USER_DEFINED)
        self._shown = list(encoder.pieces)  # by id
        for id in (*hidden, *user_defined):
            self._shown[id] = tokens[id]
        for id in ids_of_types(types, TokenType.UNUSED, TokenType.UNDEFINED):
            self._shown[id] = b""
        self._plain = list(self._shown)  # the same without control and unknown tokens
        for id in hidden:
            self._plain[id] = b""
        self._user_defined = _longest_first(tokens, user_defined)
        self._special = _longest_first(tokens, sorted((*hidden, *user_defined)))

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The ids of a text.

        Args:
            text: any; "" has no tokens but those that `add_special` adds.
            add_special: add BOS and EOS where the model wants them.
            parse_special: the names of control tokens in the text become those tokens. Names of
                user-defined tokens always do.

        Raises:
            RequestError: a lone surrogate, or a character that the vocabulary cannot express.
        """
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise RequestError(
                f"text: character {e.start} is the lone surrogate {text[e.start]!r}, "
                "which is no Unicode text"
            ) from None
        ids: list[int] = []
        if add_special and self.add_bos and self.bos is not None:
            ids.append(self.bos)
        prefix = " " if self.add_space_prefix else ""  # at the start and after special tokens
        for part in _partition(text, self._special if parse_special else self._user_defined):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encoder.encode(prefix + part)
        if add_special and self.add_eos and self.eos is not None:
            ids.append(self.eos)
        return ids

    def without_bos(self, text: str) -> str:
        """A text without the BOS that it begins with, if tokenising adds one: chat templates often
        write it too."""
        if self.bos is None or not self.add_bos:
            return text
        return text.removeprefix(self.text(self.bos))

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text that `tokenize` made `ids` of; invalid UTF-8 becomes U+FFFD.

        Without the space prefix, which llama.cpp keeps behind a BOS, as sentencepiece does not.
        For the continuation of a text, whose first space counts, use `stream`.

        Args:
            ids: also with the tokens that `add_special` added.
            special: control tokens appear by their names, else not at all.

        Raises:
            RequestError: an id outside the vocabulary.
        """
        for id in ids:
            self._check(id)
        text = b"".join(map((self._shown if special else self._plain).__getitem__, ids))
        if self.add_space_prefix:
            text = text.removeprefix(b" ")
        return text.decode(errors="replace")

    def piece(self, id: int, *, special: bool = False) -> bytes:
        """The bytes of one token within a text, maybe half a character; its space is a space.

        A control or unknown token has none unless `special`, unused ones never have any. Raises
        RequestError: an id outside the vocabulary.
        """
        self._check(id)
        return (self._shown if special else self._plain)[id]

    def text(self, id: int) -> str:
        """The token as it stands in the file. Raises RequestError: an id outside it."""
        self._check(id)
        return self._tokens[id].decode(errors="replace")

    def stream(self, special: bool = False) -> TextDecoder:
        """A decoder for ids that continue a text: nothing is taken away from their first one."""
        return TextDecoder(lambda id: self.piece(id, special=special))

    def _check(self, id: int) -> None:
        if not 0 <= id < self.n_tokens:
            raise RequestError(f"token {id} is not in the vocabulary: 0 to {self.n_tokens - 1}")


class TextDecoder:
    """Token by token to text, whole characters only. What can be no UTF-8 becomes U+FFFD."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        """`piece` gives the bytes of a token, as `Vocab.piece` does."""
        self._piece = piece
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """The characters that are complete with this token, maybe none.

        Raises RequestError: an id outside the vocabulary; the decoder stays as it was.
        """
        return self._decoder.decode(self._piece(id))

    def flush(self) -> str:
        """At the end: what was held back, as U+FFFD; afterwards the decoder is as new."""
        return self._decoder.decode(b"", final=True)


def ids_of_types(types: Sequence[int], *wanted: int) -> list[int]:
    """The ids of all tokens of these types, in ascending order."""
    numbers = set(map(int, wanted))
    return [id for id, type in enumerate(types) if type in numbers]


def _longest_first(tokens: Sequence[bytes], ids: Sequence[int]) -> list[tuple[str, int]]:
    names = []
    for id in sorted(ids, key=lambda id: -len(tokens[id])):
        name = tokens[id].decode(errors="replace")
        if name and name.encode() == tokens[id]:  # else it is in no text
            names.append((name, id))
    return names


def _partition(text: str, special: Sequence[tuple[str, int]]) -> list[str | int]:
    """The text between special tokens, and those. A longer one is looked for everywhere first."""
    taken = bytearray(len(text))  # 1 where a token has been found
    found: list[tuple[int, int, int]] = []
    for name, id in special:
        begin = text.find(name)
        while begin >= 0:
            end = begin + len(name)
            overlap = taken.find(1, begin, end)
            if overlap < 0:
                taken[begin:end] = b"\1" * len(name)
                found.append((begin, end, id))
            else:
                end = taken.find(0, overlap)
            begin = text.find(name, end) if end >= 0 else -1
    parts: list[str | int] = []
    at = 0
    for begin, end, id in sorted(found):
        if begin > at:
            parts.append(text[at:begin])
        parts.append(id)
        at = end
    if at < len(text):
        parts.append(text[at:])
    return parts
