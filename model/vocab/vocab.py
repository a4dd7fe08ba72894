"""A vocabulary: converts text to token ids and back, whole or as a stream, with special tokens.

As llama.cpp's `tokenize`, `tokenizer_st_partition` and `token_to_piece` (src/llama-vocab.cpp);
docstrings name the differences. Knows no files, no models, no chat templates and no sampling. An
`Encoder` encodes plain text. Tests: tests/model/test_vocab_text.py.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ...base.errors import RequestError
from ...base.settings import NO_JIT
from ...base.utf8 import check_utf8
from ...kernels.cpu.compiler.jit import Kernel, load_all, want
from ...kernels.cpu.vocab.names import vocab_names
from ...sched.backend import CompileProgress
from ..gguf import Strings
from .names import Names
from .token_types import TokenType, TypeArray, ids_of_types

_SILENT: Final = {int(TokenType.UNUSED), int(TokenType.UNDEFINED)}
_PLAIN: Final = {int(TokenType.NORMAL), int(TokenType.BYTE)}  # others have the file's text
# characters of Unicode's property White_Space, as in Hugging Face's tokenizers
_BLANKS: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

_N_CHARACTERS_MAX: Final = 1 << 27  # kernels count bytes in int32s, and a character has up to 4


class Encoder(Protocol):
    """Encodes plain text for one kind of vocabulary."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of text of each token, by id."""

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The kernels that `encode` calls."""

    def encode(self, text: str, /) -> list[int]:
        """Return the ids of a text without special tokens and without lone surrogates.

        Raises:
            RequestError: the vocabulary has no tokens for a character.
        """


class FillTokens(NamedTuple):
    """The tokens of prompts whose middle the model fills in; None for those that it lacks.

    `prefix`, `suffix` and `middle` begin these parts. Before them may be other texts: `repo` begins
    the repository's name, and `file` a file.
    """

    prefix: int | None = None
    suffix: int | None = None
    middle: int | None = None
    repo: int | None = None
    file: int | None = None

    @property
    def is_complete(self) -> bool:
        """True if the model can fill in a middle."""
        return None not in (self.prefix, self.suffix, self.middle)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The ids of special tokens. `tokenize` adds BOS and EOS if their flags are set.

    Of BERT's tokens, CLS is `bos`, and SEP is both `eos` and `sep`. A text pair has `eos` after its
    first text, and then `sep` if `add_sep` is set.
    """

    bos: int | None
    eos: int | None
    eot: int | None
    unk: int | None
    add_bos: bool
    add_eos: bool
    eog: frozenset[int]  # tokens that end a generation
    sep: int | None = None
    pad: int | None = None
    mask: int | None = None
    add_sep: bool = False
    lstrip: frozenset[int] = frozenset()  # tokens that remove the spaces before them
    rstrip: frozenset[int] = frozenset()  # tokens that remove the spaces after them
    suppressed: frozenset[int] = frozenset()  # tokens that a generation never has
    fill: FillTokens = FillTokens()


class Vocab:
    """A vocabulary of `n_tokens` tokens. Immutable and thread-safe."""

    def __init__(
        self,
        tokens: Strings,
        types: TypeArray,
        encoder: Encoder,
        special: SpecialTokens,
        *,
        add_space_prefix: bool,
    ) -> None:
        """
        Args:
            tokens: the texts of the tokens in the file.
            types: a `TokenType` for each token.
            encoder: encodes text to these tokens.
            special: ids within `tokens`. A token with an `add_` flag must have an id.
            add_space_prefix: add a space before text at the start and after special tokens.
        """
        self.n_tokens = len(tokens)
        # of the longest token's text in the file, which is at least as long as its text
        self.n_piece_bytes_max = int((tokens.ends - tokens.begins).max(initial=1))
        self.bos, self.eos, self.eot, self.unk = special.bos, special.eos, special.eot, special.unk
        self.sep, self.pad, self.mask = special.sep, special.pad, special.mask
        self.add_bos, self.add_eos = special.add_bos, special.add_eos
        self.add_sep = special.add_sep
        self.eog, self.suppressed = special.eog, special.suppressed
        self.fill = special.fill
        self._lstrip, self._rstrip = special.lstrip, special.rstrip
        self.add_space_prefix = add_space_prefix
        self._tokens = tokens
        self._encoder = encoder
        self.kernels = (*encoder.kernels, vocab_names)  # those that `tokenize` calls
        if not NO_JIT():
            want(self.kernels)
        self._types = types.tobytes()
        self._pieces: dict[int, bytes] = {}  # those asked for so far, with control tokens' names
        self._texts: dict[int, str | None] = {}  # see `whole_text`
        hidden = ids_of_types(types, TokenType.CONTROL, TokenType.UNKNOWN)
        self._hidden = frozenset(hidden)
        user_defined = ids_of_types(types, TokenType.USER_DEFINED)
        self._user_defined = Names(tokens, user_defined)
        self._special = Names(tokens, sorted((*hidden, *user_defined)))

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Return the ids of a text.

        Args:
            text: any text.
            add_special: add BOS and EOS if the model uses them.
            parse_special: names of control tokens in the text become these tokens. Names of
                user-defined tokens always do.

        Raises:
            RequestError: the text is not valid UTF-8 or too long, or the vocabulary has no tokens
                for a character.
        """
        if len(text) > _N_CHARACTERS_MAX:
            raise RequestError(
                f"the text has {len(text)} characters, must be at most {_N_CHARACTERS_MAX}"
            )
        check_utf8("the text", text)
        ids: list[int] = []
        if add_special and self.add_bos and self.bos is not None:
            ids.append(self.bos)
        prefix = " " if self.add_space_prefix else ""  # at the start and after special tokens
        names = self._special if parse_special else self._user_defined
        for part in self._stripped(names.partition(text)):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encoder.encode(prefix + part)
        if add_special and self.add_eos and self.eos is not None:
            ids.append(self.eos)
        return ids

    def load_kernels(self, progress: CompileProgress | None = None) -> None:
        """Compile or load the kernels of `tokenize`, so that no request waits for them.

        Does nothing with LAMELLA_NO_JIT. Raises BackendError if a kernel cannot be compiled.
        """
        if not NO_JIT():
            load_all(self.kernels, progress)

    def without_bos(self, text: str) -> str:
        """Return a text without its leading BOS if `tokenize` adds one.

        Chat templates often write BOS as well.
        """
        if self.bos is None or not self.add_bos:
            return text
        return text.removeprefix(self.text(self.bos))

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of `ids`, the inverse of `tokenize`. Invalid UTF-8 becomes U+FFFD.

        The space prefix is removed, as in sentencepiece; llama.cpp keeps it after a BOS. For a
        continuation, in which a leading space belongs to the text, use `stream`.

        Args:
            ids: token ids, with or without those added by `add_special`.
            special: include the names of control tokens in the text.

        Raises:
            RequestError: an id is outside the vocabulary.
        """
        for id in ids:
            if id not in self._pieces:
                self.piece(id)
        hidden = frozenset[int]() if special else self._hidden
        text = b"".join([self._pieces[id] for id in ids if id not in hidden])
        if self.add_space_prefix:
            text = text.removeprefix(b" ")
        return text.decode(errors="replace")

    def piece(self, id: int, *, special: bool = False) -> bytes:
        """Return the bytes of one token within a text, which may be part of a character.

        Control and unknown tokens are empty without `special`; unused tokens are always empty.
        Raises RequestError if the id is outside the vocabulary.
        """
        piece = self._pieces.get(id)
        if piece is None:
            self._check(id)
            piece = self._pieces[id] = self._shown(id)
        return b"" if id in self._hidden and not special else piece

    def whole_text(self, id: int) -> str | None:
        """Return the text of `piece`; None if it is not whole characters. Errors are those of
        `piece`."""
        try:
            return self._texts[id]
        except KeyError:
            pass
        try:
            text = self.piece(id).decode()
        except UnicodeDecodeError:
            text = None
        self._texts[id] = text
        return text

    def pieces(self) -> list[bytes]:
        """Return the bytes of all tokens by id, as `piece` does for one."""
        found = list(self._encoder.pieces)
        for id, type in enumerate(self._types):
            if type not in _PLAIN:
                found[id] = b"" if id in self._hidden else self._shown(id)
        return found

    @property
    def control_ids(self) -> frozenset[int]:
        """Control and unknown tokens, which have no text."""
        return self._hidden

    def text(self, id: int) -> str:
        """Return a token's text in the file. Raises RequestError if the id is outside it."""
        self._check(id)
        return self._tokens[id].decode(errors="replace")

    @property
    def special_names(self) -> frozenset[str]:
        """The texts of control, unknown and user-defined tokens, which `parse_special` finds."""
        return frozenset(self._special.ids)

    @property
    def special_ids(self) -> Mapping[str, int]:
        """The ids of `special_names`."""
        return self._special.ids

    def stream(self, shown: Container[int] = ()) -> TextDecoder:
        """Return a decoder for ids that continue a text. It keeps a leading space.

        `shown` are control tokens whose names are part of the text.
        """
        return TextDecoder(self, shown)

    def _stripped(self, parts: list[str | int]) -> list[str | int]:
        """Return the parts of a text without the spaces that special tokens remove."""
        if not self._lstrip and not self._rstrip:
            return parts
        left, right = [None, *parts][:-1], [*parts, None][1:]
        found: list[str | int] = []
        for before, part, after in zip(left, parts, right, strict=True):
            kept = part
            if isinstance(kept, str):
                kept = kept.lstrip(_BLANKS) if before in self._rstrip else kept
                kept = kept.rstrip(_BLANKS) if after in self._lstrip else kept
            if kept != "":
                found.append(kept)
        return found

    def _shown(self, id: int) -> bytes:
        type = self._types[id]
        if type in _SILENT:
            return b""
        return self._encoder.pieces[id] if type in _PLAIN else self._tokens[id]

    def _check(self, id: int) -> None:
        if not 0 <= id < self.n_tokens:
            raise RequestError(f"token {id} is not in the vocabulary: 0 to {self.n_tokens - 1}")


class TextDecoder:
    """Decodes tokens one by one to complete characters. Invalid UTF-8 becomes U+FFFD."""

    def __init__(self, vocab: Vocab, shown: Container[int] = ()) -> None:
        self._vocab = vocab
        self._shown = shown
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._is_inside = False  # the last token ends inside a character

    def push(self, id: int) -> str:
        """Return the characters that this token completes, maybe "".

        Raises RequestError if the id is outside the vocabulary; the decoder does not change.
        """
        is_shown = id in self._shown
        if not self._is_inside and not is_shown:
            whole = self._vocab.whole_text(id)
            if whole is not None:
                return whole
        text = self._decoder.decode(self._vocab.piece(id, special=is_shown))
        self._is_inside = self._decoder.getstate()[0] != b""
        return text

    def flush(self) -> str:
        """End the text: return U+FFFD for an incomplete character, else "". Resets the decoder."""
        self._is_inside = False
        return self._decoder.decode(b"", final=True)
