"""Finds the tokens in which a DRY sequence breaker can begin, and the tokens of its rest.

Knows only the texts of a vocabulary. Tested by tests/model/test_sampling_dry.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

# token -> the tails of breakers that begin in it; () is a breaker that ends in it as well
Breakers: TypeAlias = Mapping[int, Collection[tuple[int, ...]]]

_N_BYTES_MAX: Final = 40  # of a breaker; MAX_CHAR_LEN of llama_sampler_init_dry
_N_TAIL_MAX: Final = 20  # tokens of a tail; MAX_SEQ_LEN there
_REPLACEMENT: Final = "\ufffd".encode()


class BreakerVocab(Protocol):
    """The methods of a vocabulary that are needed here. Hashable by identity."""

    @property
    def n_tokens(self) -> int: ...
    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]: ...
    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str: ...
    def piece(self, token: int, /, *, special: bool = False) -> bytes: ...


class _TokenTexts:
    """The texts of all tokens, also concatenated, so that NumPy finds tokens by a byte."""

    def __init__(self, vocab: BreakerVocab) -> None:
        self.texts = [_text(vocab, token) for token in range(vocab.n_tokens)]
        self._bytes = np.frombuffer(b"".join(self.texts), np.uint8)
        self._ends = np.cumsum([len(text) for text in self.texts])

    def containing(self, byte: int) -> list[int]:
        places = np.flatnonzero(self._bytes == byte)
        tokens: list[int] = np.unique(np.searchsorted(self._ends, places, side="right")).tolist()
        return tokens


_texts: WeakKeyDictionary[BreakerVocab, _TokenTexts] = WeakKeyDictionary()


def find_breakers(vocab: BreakerVocab, breakers: Sequence[str]) -> Breakers:
    """Return all tokens in which a breaker can begin, with the tails that complete it.

    As llama.cpp's get_overlapping_token_sequences. The first call for a vocabulary decodes all its
    tokens, which takes a while. A breaker is limited to 40 bytes, its tail to 20 tokens. If a token
    ends inside a character, the tail is not UTF-8 and never matches.
    """
    words = _texts.get(vocab)
    if words is None:
        words = _texts[vocab] = _TokenTexts(vocab)
    found: dict[int, set[tuple[int, ...]]] = {}
    for breaker in breakers:
        wanted = breaker.encode()[:_N_BYTES_MAX]
        for token in words.containing(wanted[0]):
            for rest in _rests(words.texts[token], wanted):
                found.setdefault(token, set()).add(_tokenized(vocab, rest))
    return found


def _rests(text: bytes, breaker: bytes) -> list[bytes]:
    """Return the missing rest of `breaker` for each way in which it can begin in `text`.

    Only [b""] if `text` contains the whole breaker.
    """
    if breaker in text:
        return [b""]
    n = len(breaker)
    ends = [text[-length:] for length in range(1, min(n, len(text) + 1))]
    return [breaker[len(end) :] for end in ends if breaker.startswith(end)]


def _tokenized(vocab: BreakerVocab, rest: bytes) -> tuple[int, ...]:
    if not rest:
        return ()
    text = rest.decode(errors="replace")
    return tuple(vocab.tokenize(text, add_special=False, parse_special=False)[:_N_TAIL_MAX])


def _text(vocab: BreakerVocab, token: int) -> bytes:
    # detokenize removes the space prefix that a vocabulary may add, piece does not
    text = vocab.detokenize([token], special=True).encode()
    return vocab.piece(token, special=True) if _REPLACEMENT in text else text
