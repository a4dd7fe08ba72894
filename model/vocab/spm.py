"""SPM encoding: text to token ids by sentencepiece, with a model built from a GGUF's vocabulary.

A GGUF file has the data of a sentencepiece model file in other arrays. The `ModelProto` message is
encoded here without the protobuf library, as only a few fields are needed (fields:
sentencepiece_model.proto of google/sentencepiece; wire format: protobuf.dev, "Encoding").

Knows no special tokens and no space prefix. Tests: tests/model/test_vocab_spm.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, overload

import numpy as np
import numpy.typing as npt
from sentencepiece import SentencePieceProcessor

from ...base.errors import ModelFileError, RequestError
from ...kernels.cpu.compiler.jit import Kernel
from ..gguf import Strings
from .token_types import TokenType, TypeArray

SPACE: Final = "▁"  # U+2581 stands for a space in the text of tokens

BYTES: Final = {b"<0x%02X>" % byte: bytes([byte]) for byte in range(256)}
"""The byte for the text of each token of type BYTE."""


class SpmPieces(Sequence[bytes]):
    """The bytes of the text of each token, computed on access."""

    def __init__(self, tokens: Strings, types: TypeArray) -> None:
        self._tokens, self._types = tokens, types

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, id: int) -> bytes: ...
    @overload
    def __getitem__(self, id: slice) -> SpmPieces: ...
    def __getitem__(self, id: int | slice) -> bytes | SpmPieces:
        if isinstance(id, slice):
            return SpmPieces(self._tokens[id], self._types[id])
        token = self._tokens[id]
        if self._types[id] == TokenType.BYTE and token in BYTES:
            return BYTES[token]
        return token.replace(SPACE.encode(), b" ")


class SpmEncoder:
    """Merges pairs of tokens as SPM's BPE does: the best score first, ties from left to right.

    Characters without a token become byte tokens. The ids are those of llama.cpp
    (`llm_tokenizer_spm_session`), with two differences: text never becomes control or unknown
    tokens, and unused tokens are replaced by the tokens that they are merged from.
    """

    kernels: tuple[Kernel, ...] = ()

    def __init__(
        self,
        tokens: Strings,
        scores: npt.NDArray[np.float32],
        types: TypeArray,
        unk: int | None,
    ) -> None:
        """
        Args:
            tokens: the texts of the tokens. The first of equal texts is used. A text that is empty
                or has a space or NUL is not used, as sentencepiece does not support it.
            scores: `[n]`, without NaN.
            types: a `TokenType` for each token.
            unk: the token for characters without a token, if the vocabulary has no byte tokens.

        Raises:
            ModelFileError: sentencepiece refuses the vocabulary.
        """
        self.pieces = SpmPieces(tokens, types)
        self._unk = unk
        self._none = len(tokens)  # the id of the unknown piece, added after all others
        has_bytes = not BYTES.keys() - set(tokens)
        pieces = _pieces(tokens, types.tolist(), has_bytes)
        proto = _model_proto(pieces, np.append(scores, np.float32(0)), has_bytes)
        try:
            self._processor = SentencePieceProcessor(model_proto=proto)
        except (RuntimeError, ValueError) as e:
            raise ModelFileError(f"tokenizer.ggml.tokens is not a valid SPM vocabulary: {e}") from e

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens and without lone surrogates.

        Raises:
            RequestError: a character has no token, and the vocabulary has no bytes and no unknown
                token.
        """
        ids: list[int] = self._processor.encode(text.replace(" ", SPACE), out_type=int)
        if self._none not in ids:
            return ids
        if self._unk is None:
            raise RequestError("the text has characters for which the vocabulary has no tokens")
        return [self._unk if id == self._none else id for id in ids]


_TYPE_IN_MODEL: Final[dict[int, int]] = {
    TokenType.UNDEFINED: TokenType.UNUSED,
    TokenType.NORMAL: TokenType.NORMAL,
    TokenType.UNKNOWN: TokenType.CONTROL,
    TokenType.CONTROL: TokenType.CONTROL,
    # Vocab splits a text at these tokens before it is encoded, by llama.cpp's rules
    TokenType.USER_DEFINED: TokenType.NORMAL,
    TokenType.UNUSED: TokenType.UNUSED,
    TokenType.BYTE: TokenType.NORMAL,
}


def _pieces(
    tokens: Sequence[bytes], types: Sequence[int], has_bytes: bool
) -> list[tuple[bytes, int]]:
    """Return (text, type) of each piece, without empty and duplicate texts.

    A token that must not be found in text becomes a control piece.
    """
    control, byte = int(TokenType.CONTROL), int(TokenType.BYTE)
    byte_texts = BYTES.keys() if has_bytes else ()
    pieces: list[tuple[bytes, int]] = []
    seen = {b""}
    for id, token in enumerate(tokens):
        # byte tokens are found by their text, as in llama.cpp, because types may be missing
        type = byte if token in byte_texts else _TYPE_IN_MODEL[types[id]]
        if type == control or token in seen or b" " in token or b"\0" in token:
            # encode() replaces spaces, so no text contains this piece
            pieces.append((b" %d" % id, control))
        else:
            seen.add(token)
            pieces.append((token, type))
    pieces.append((b" unknown", TokenType.UNKNOWN))
    return pieces


def _model_proto(
    pieces: Sequence[tuple[bytes, int]], scores: npt.NDArray[np.float32], byte_fallback: bool
) -> bytes:
    floats = scores.astype("<f4").tobytes()
    types = [_number(3, type) for type in TokenType]
    messages = [
        # SentencePiece: piece = 1, score = 2, type = 3
        _message(1, _message(1, text) + b"\x15" + floats[4 * i : 4 * i + 4] + types[type])
        for i, (text, type) in enumerate(pieces)
    ]
    bpe = 2
    messages.append(_message(2, _number(3, bpe) + _number(35, byte_fallback)))  # TrainerSpec
    # NormalizerSpec: no dummy prefix, whitespace neither removed nor escaped
    messages.append(_message(3, _number(3, 0) + _number(4, 0) + _number(5, 0)))
    return b"".join(messages)


def _message(field: int, body: bytes) -> bytes:
    return _head(field, len(body)) + body


@lru_cache(maxsize=1024)
def _head(field: int, n: int) -> bytes:
    return _varint(field << 3 | 2) + _varint(n)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    low_first = []
    while value > 0x7F:
        low_first.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*low_first, value])
