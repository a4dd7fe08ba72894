"""Finds the tokens in which a DRY sequence breaker can begin, and the tokens of its rest.

Knows only the texts of a vocabulary. Tested by tests/model/test_sampling_dry.py.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import numpy.typing as npt

Tail: TypeAlias = tuple[int, ...]
Mask = npt.NDArray[np.bool_]

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


class Breakers:
    """The tokens in which a breaker begins, with the tails that complete it. () is the tail of a
    breaker that also ends in the token. Tokens with equal tails share them."""

    def __init__(self, n_tokens: int, tails: Mapping[int, Collection[Tail]]) -> None:
        self._distinct: list[Collection[Tail]] = [()]
        self._indices = array("i", bytes(4 * n_tokens))  # of the tails of each token
        known: dict[frozenset[Tail], int] = {}
        for token, of_token in tails.items():
            index = known.setdefault(frozenset(of_token), len(self._distinct))
            if index == len(self._distinct):
                self._distinct.append(tuple(of_token))
            self._indices[token] = index

    def tails(self, token: int) -> Collection[Tail]:
        """The tails of breakers that begin in a token; nothing if none does."""
        return self._distinct[self._indices[token]]


class _TokenTexts:
    """The texts of all tokens: concatenated, and backwards in order. So tokens that contain or end
    with some bytes are found without a look at each token."""

    def __init__(self, vocab: BreakerVocab) -> None:
        texts = [_text(vocab, token) for token in range(vocab.n_tokens)]
        self.n_tokens = len(texts)
        self.breakers: WeakValueDictionary[tuple[bytes, ...], Breakers] = WeakValueDictionary()
        self._bytes = np.frombuffer(b"".join(texts), np.uint8)
        lengths = [len(text) for text in texts]
        self._tokens = np.repeat(np.arange(self.n_tokens, dtype=np.int32), lengths)
        self._after_all = b"\xff" * (1 + max(lengths, default=0))
        order = sorted((text[::-1], token) for token, text in enumerate(texts))
        self._backwards = [text for text, _ in order]
        self._ordered = np.array([token for _, token in order], np.int32)

    def containing(self, part: bytes) -> Mask:
        """True for each token that contains these bytes."""
        begins = np.flatnonzero(self._bytes[: len(self._bytes) - len(part) + 1] == part[0])
        begins = begins[self._tokens[begins] == self._tokens[begins + len(part) - 1]]
        for i, byte in enumerate(part[1:], 1):
            begins = begins[self._bytes[begins + i] == byte]
        found = np.zeros(self.n_tokens, np.bool_)
        found[self._tokens[begins]] = True
        return found

    def ending_with(self, part: bytes) -> Sequence[int]:
        """The tokens that end with these bytes."""
        low = bisect_left(self._backwards, part[::-1])
        high = bisect_left(self._backwards, part[::-1] + self._after_all)
        tokens: list[int] = self._ordered[low:high].tolist()
        return tokens


_texts: WeakKeyDictionary[BreakerVocab, _TokenTexts] = WeakKeyDictionary()


def find_breakers(vocab: BreakerVocab, breakers: Sequence[str]) -> Breakers:
    """Return the tokens in which a breaker can begin, with the tails that complete it.

    As llama.cpp's get_overlapping_token_sequences. The first call for a vocabulary decodes all its
    tokens, which takes a while. All users of the same breakers share what is found. A breaker is
    limited to 40 bytes, its tail to 20 tokens. If a token ends inside a character, the tail is not
    UTF-8 and never matches.
    """
    words = _texts.get(vocab)
    if words is None:
        words = _texts[vocab] = _TokenTexts(vocab)
    wanted = tuple(sorted({text.encode()[:_N_BYTES_MAX] for text in breakers}))
    found = words.breakers.get(wanted)
    if found is None:
        found = words.breakers[wanted] = _found(vocab, words, wanted)
    return found


def _found(vocab: BreakerVocab, words: _TokenTexts, breakers: Sequence[bytes]) -> Breakers:
    ends = np.zeros(words.n_tokens, np.bool_)  # tokens in which a breaker ends as well
    begun: dict[int, set[Tail]] = {}
    for breaker in breakers:
        contain = words.containing(breaker)
        ends |= contain
        for n in range(1, len(breaker)):
            tokens = words.ending_with(breaker[:n])
            tail = _tokenized(vocab, breaker[n:]) if tokens else ()
            for token in tokens:
                if not contain[token]:
                    begun.setdefault(token, set()).add(tail)
    whole: frozenset[Tail] = frozenset({()})
    tails = dict.fromkeys(np.flatnonzero(ends).tolist(), whole)
    for token, of_token in begun.items():
        tails[token] = tails.get(token, frozenset()) | of_token
    return Breakers(words.n_tokens, tails)


def _tokenized(vocab: BreakerVocab, rest: bytes) -> Tail:
    text = rest.decode(errors="replace")
    return tuple(vocab.tokenize(text, add_special=False, parse_special=False)[:_N_TAIL_MAX])


def _text(vocab: BreakerVocab, token: int) -> bytes:
    # detokenize removes the space prefix that a vocabulary may add, piece does not
    text = vocab.detokenize([token], special=True).encode()
    return vocab.piece(token, special=True) if _REPLACEMENT in text else text
