"""Which tokens contain or begin a DRY sequence breaker, and how its rest is spelled.

Knows only the texts of a vocabulary. Tested by tests/model/test_sampling_dry.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

# token -> how a breaker that begins in it goes on; () if it ends there, too
Breakers: TypeAlias = Mapping[int, Collection[tuple[int, ...]]]

_N_BYTES_MAX: Final = 40  # of a breaker: MAX_CHAR_LEN and MAX_SEQ_LEN of llama_sampler_init_dry
_N_TAIL_MAX: Final = 20
_REPLACEMENT: Final = "\ufffd".encode()


class BreakerVocab(Protocol):
    """What is asked of a vocabulary; hashable by identity."""

    @property
    def n_tokens(self) -> int: ...
    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]: ...
    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str: ...
    def piece(self, token: int, /, *, special: bool = False) -> bytes: ...


class _Words:
    """The texts of all tokens, also end to end: where a byte occurs is found without a loop."""

    def __init__(self, vocab: BreakerVocab) -> None:
        self.texts = [_text(vocab, token) for token in range(vocab.n_tokens)]
        self._bytes = np.frombuffer(b"".join(self.texts), np.uint8)
        self._ends = np.cumsum([len(text) for text in self.texts])

    def containing(self, byte: int) -> list[int]:
        places = np.flatnonzero(self._bytes == byte)
        tokens: list[int] = np.unique(np.searchsorted(self._ends, places, side="right")).tolist()
        return tokens


_words: WeakKeyDictionary[BreakerVocab, _Words] = WeakKeyDictionary()


def find_breakers(vocab: BreakerVocab, breakers: Sequence[str]) -> Breakers:
    """All ways in which `breakers` can begin in a token (get_overlapping_token_sequences).

    The first call for a vocabulary spells all its tokens, which takes a while. A breaker is cut
    to 40 bytes, its rest to 20 tokens. Where a token ends inside a character, the rest is no text
    and matches nothing.
    """
    words = _words.get(vocab)
    if words is None:
        words = _words[vocab] = _Words(vocab)
    found: dict[int, set[tuple[int, ...]]] = {}
    for breaker in breakers:
        wanted = breaker.encode()[:_N_BYTES_MAX]
        for token in words.containing(wanted[0]):
            for rest in _rests(words.texts[token], wanted):
                found.setdefault(token, set()).add(_spelled(vocab, rest))
    return found


def _rests(text: bytes, breaker: bytes) -> list[bytes]:
    """What is missing of `breaker` after `text`, for each of its places there; b"" if nothing."""
    if breaker in text:
        return [b""]
    n = len(breaker)
    ends = [text[-length:] for length in range(1, min(n, len(text) + 1))]
    return [breaker[len(end) :] for end in ends if breaker.startswith(end)]


def _spelled(vocab: BreakerVocab, rest: bytes) -> tuple[int, ...]:
    if not rest:
        return ()
    text = rest.decode(errors="replace")
    return tuple(vocab.tokenize(text, add_special=False, parse_special=False)[:_N_TAIL_MAX])


def _text(vocab: BreakerVocab, token: int) -> bytes:
    # alone, not as a piece: a vocabulary that adds a leading space takes it away again
    text = vocab.detokenize([token], special=True).encode()
    return vocab.piece(token, special=True) if _REPLACEMENT in text else text
