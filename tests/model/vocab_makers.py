"""Small vocabularies for tests, and metadata made from a dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lamella.base.errors import ModelFileError
from lamella.model.gguf import Strings
from lamella.model.vocab import TokenType, Vocab, load_vocab
from lamella.model.vocab.bpe import BYTES

N, UNK, CTRL, USER, UNUSED, BYTE = (
    int(TokenType.NORMAL),
    int(TokenType.UNKNOWN),
    int(TokenType.CONTROL),
    int(TokenType.USER_DEFINED),
    int(TokenType.UNUSED),
    int(TokenType.BYTE),
)
Token = tuple[str | bytes, float, int]  # text, score, type

HEAD: list[Token] = [("<unk>", 0, UNK), ("<s>", 0, CTRL), ("</s>", 0, CTRL)]
BYTE_TOKENS: list[Token] = [(f"<0x{byte:02X}>", 0, BYTE) for byte in range(256)]


class DictMetadata:
    """Metadata from a dict. Its keys lack the prefix `tokenizer.ggml.`; types are not checked."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)

    def _get(self, key: str, *default: Any) -> Any:
        name = key.removeprefix("tokenizer.ggml.")
        if name in self.values:
            return self.values[name]
        if not default:
            raise ModelFileError(f"{key} is missing")
        return default[0]

    def bytes_strings(self, key: str) -> Strings:
        return Strings.of([t.encode() if isinstance(t, str) else t for t in self._get(key)])

    def int_array(self, key: str, default: None) -> npt.NDArray[np.int64] | None:
        values = self._get(key, default)
        return None if values is None else np.array(values)

    int = bool = str = floats = _get


def metadata(tokens: Sequence[Token], /, **values: object) -> DictMetadata:
    raw = [text.encode() if isinstance(text, str) else text for text, _, _ in tokens]
    found: dict[str, object] = {
        "model": "llama",
        "tokens": raw,
        "scores": np.array([score for _, score, _ in tokens], np.float32),
        "token_type": [type for _, _, type in tokens],
    }
    found |= values
    return DictMetadata({key: value for key, value in found.items() if value is not None})


def vocab(*tokens: Token, **values: object) -> Vocab:
    """Return a vocabulary of `<unk>`, `<s>`, `</s>`, all bytes, then `tokens`.

    A key with value None is omitted.
    """
    return load_vocab(metadata([*HEAD, *BYTE_TOKENS, *tokens], **values))


def bpe(*merges: str, more: Sequence[Token] = (), **values: object) -> Vocab:
    """Return a BPE vocabulary: all bytes in order, the results of the merges, then `more`."""
    made = [merge.replace(" ", "") for merge in merges]
    tokens = [*sorted(BYTES, key=BYTES.__getitem__), *dict.fromkeys(made)]
    return load_vocab(
        metadata(
            [*((text, 0.0, N) for text in tokens), *more],
            **{"model": "gpt2", "pre": "gpt-2", "merges": list(merges), "scores": None} | values,
        )
    )


def merged(word: str, merges: list[str]) -> list[str]:
    """Merge by BPE's rule: the pair that is first in the list, equal pairs from left to right."""
    symbols = list(word)
    while True:
        pairs = [
            (merges.index(f"{a} {b}"), i)
            for i, (a, b) in enumerate(pairwise(symbols))
            if f"{a} {b}" in merges
        ]
        if not pairs:
            return symbols
        i = min(pairs)[1]
        symbols[i : i + 2] = ["".join(symbols[i : i + 2])]


def normal(*texts: str) -> list[Token]:
    """Return tokens with descending scores, so that earlier ones are merged first."""
    return [(text, -float(i), N) for i, text in enumerate(texts)]


def texts(vocab: Vocab, ids: Sequence[int]) -> list[str]:
    return [vocab.text(id) for id in ids]
