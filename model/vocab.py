"""The vocabulary of a GGUF file: text to token ids and back, whole or as a stream.

Behaviour and defaults are those of llama.cpp's SPM vocabulary (src/llama-vocab.cpp: `load`,
`tokenize`, `tokenizer_st_partition`, `token_to_piece`); where it differs, a docstring says so.
Knows no model, no chat template and no sampling. Merging is done by model/spm.py.
Tests: tests/model/test_vocab_*.py.
"""

from __future__ import annotations

import builtins
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ..base.errors import ModelFileError, RequestError, UnsupportedModelError
from .spm import BYTES, SPACE, SpmEncoder, TokenType


class VocabMetadata(Protocol):
    """What is read of a file's metadata; `model.gguf.Metadata` is one.

    All raise ModelFileError: the key is missing and has no default, or its type is another.
    """

    def int(self, key: builtins.str, default: builtins.int | None, /) -> builtins.int | None: ...
    def bool(self, key: builtins.str, default: builtins.bool, /) -> builtins.bool: ...
    def str(self, key: builtins.str, /) -> builtins.str: ...
    def bytes_strings(self, key: builtins.str, /) -> Sequence[bytes]: ...
    def ints(self, key: builtins.str, default: None, /) -> Sequence[builtins.int] | None: ...
    def floats(self, key: builtins.str, default: None, /) -> npt.NDArray[np.float32] | None: ...


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
    """An SPM vocabulary of `n_tokens` tokens. Immutable, for any number of threads."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        types: Sequence[int],
        encoder: SpmEncoder,
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
        self._shown = _shown_pieces(tokens, types)  # by id
        self._plain = list(self._shown)  # the same without control and unknown tokens
        for id in _ids_of(types, TokenType.CONTROL, TokenType.UNKNOWN):
            self._plain[id] = b""
        self._user_defined = _longest_first(tokens, _ids_of(types, TokenType.USER_DEFINED))
        self._special = _longest_first(
            tokens,
            _ids_of(types, TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN),
        )

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


def load_vocab(metadata: VocabMetadata) -> Vocab:
    """The vocabulary of a model file.

    Raises:
        ModelFileError: a key is missing or has a value that cannot be.
        UnsupportedModelError: a vocabulary of another kind than SPM.
    """
    kind = metadata.str(_key("model"))
    if kind != "llama":
        raise UnsupportedModelError(
            f"{_key('model')} is {kind!r}, supported vocabularies: 'llama' (SPM)"
        )
    tokens = metadata.bytes_strings(_key("tokens"))
    if not tokens:
        raise ModelFileError(f"{_key('tokens')} is empty")
    scores = metadata.floats(_key("scores"), None)
    if scores is None:
        scores = np.zeros(len(tokens), np.float32)
    types = metadata.ints(_key("token_type"), None)
    types = [int(TokenType.NORMAL)] * len(tokens) if types is None else list(types)
    _check_arrays(tokens, scores, types)
    special = _special_tokens(metadata, tokens, types)
    return Vocab(
        tokens,
        types,
        SpmEncoder(tokens, scores, types, special.unk),
        special,
        add_space_prefix=metadata.bool(_key("add_space_prefix"), True),
    )


def _key(name: str) -> str:
    return f"tokenizer.ggml.{name}"


def _check_arrays(
    tokens: Sequence[bytes], scores: npt.NDArray[np.float32], types: Sequence[int]
) -> None:
    for name, n in (("scores", len(scores)), ("token_type", len(types))):
        if n != len(tokens):
            raise ModelFileError(f"{_key(name)} has {n} elements for {len(tokens)} tokens")
    if np.isnan(scores).any():
        raise ModelFileError(f"{_key('scores')}[{np.isnan(scores).argmax()}] is not a number")
    for id in _ids_of(types, *set(types) - set(TokenType)):
        raise ModelFileError(
            f"{_key('token_type')}[{id}] is {types[id]}, it must be one of "
            + ", ".join(f"{type.value} ({type.name})" for type in TokenType)
        )
    for id in _ids_of(types, TokenType.BYTE):
        if tokens[id] not in BYTES:
            raise ModelFileError(
                f"{_key('tokens')}[{id}] is {tokens[id][:40]!r}, "
                "the text of a BYTE token must be from <0x00> to <0xFF>"
            )


# The texts by which llama.cpp finds tokens that a file gives no ids for.
_TEXTS: Final = {
    "eot": [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<\uff5cend▁of▁sentence\uff5c>",
        "<end_of_utterance>",
    ],
    "eom": ["<|eom_id|>"],
    "fim_pad": ["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    "fim_rep": ["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    "fim_sep": ["<|file_sep|>"],
}
# Those that end a generation whatever ids the file gives.
_EOG_TEXTS: Final = [
    *_TEXTS["eot"],
    *_TEXTS["eom"],
    "</s>",
    "<eos>",
    "[EOS]",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
]


def _special_tokens(
    metadata: VocabMetadata, tokens: Sequence[bytes], types: list[int]
) -> SpecialTokens:
    """The special ids. Those found by their texts become control tokens, in `types` too."""
    ids = {name: _stated_id(metadata, name, len(tokens)) for name in ("bos", "eos", "unknown")}
    id_of = dict(zip(reversed(tokens), reversed(range(len(tokens))), strict=True))
    for name, texts in _TEXTS.items():
        ids[name] = _stated_id(metadata, name, len(tokens))
        found = [id_of[text.encode()] for text in texts if text.encode() in id_of]
        if ids[name] is None and found:
            ids[name] = found[0]
            types[found[0]] = TokenType.CONTROL
    ends = [id_of[text.encode()] for text in _EOG_TEXTS if text.encode() in id_of]
    for id in ends:
        types[id] = TokenType.CONTROL
    ends += [id for id in map(ids.get, ("eos", *_TEXTS)) if id is not None]
    special = SpecialTokens(
        bos=ids["bos"],
        eos=ids["eos"],
        eot=ids["eot"],
        unk=ids["unknown"],
        add_bos=metadata.bool(_key("add_bos_token"), True),
        add_eos=metadata.bool(_key("add_eos_token"), False),
        eog=frozenset(ends),
    )
    for name, add in (("bos", special.add_bos), ("eos", special.add_eos)):
        if add and ids[name] is None:
            raise ModelFileError(f"{_key(f'add_{name}_token')} is true, but there is no such token")
    return special


def _stated_id(metadata: VocabMetadata, name: str, n_tokens: int) -> int | None:
    """The id in the file, or the one that SPM vocabularies use when they do not say."""
    key = _key(f"{name}_token_id")
    id = metadata.int(key, None)
    if id is None:
        default = {"unknown": 0, "bos": 1, "eos": 2}.get(name, n_tokens)
        return default if default < n_tokens else None
    if not 0 <= id < n_tokens:
        raise ModelFileError(f"{key} is {id}, it must be 0 to {n_tokens - 1}")
    return id


def _ids_of(types: Sequence[int], *wanted: int) -> list[int]:
    numbers = set(map(int, wanted))
    return [id for id, type in enumerate(types) if type in numbers]


def _shown_pieces(tokens: Sequence[bytes], types: Sequence[int]) -> list[bytes]:
    space = SPACE.encode()
    pieces = [token.replace(space, b" ") for token in tokens]
    for id in _ids_of(types, TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
        pieces[id] = tokens[id]
    for id in _ids_of(types, TokenType.BYTE):
        pieces[id] = BYTES[tokens[id]]
    for id in _ids_of(types, TokenType.UNUSED, TokenType.UNDEFINED):
        pieces[id] = b""
    return pieces


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
