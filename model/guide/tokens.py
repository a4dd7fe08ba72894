"""llguidance's view of a vocabulary: the bytes of each token, special tokens, end tokens.

Tested by tests/model/test_guide.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the helper process of a sandbox imports this without vocabularies
    from llguidance import LLTokenizer

    from ..vocab import Vocab


# Tokens that may be inside a JSON string, by length. If a string may still have so many characters,
# the mask takes all tokens of a slice at once; others are checked one by one. With llguidance's own
# slices, of 10 and 30 characters, the slowest hundredth of masks took four times as long
_SLICES: Final = [
    rf'[^"\\\x00-\x1F\x7F]{count}' for count in ("{1,4}", "{1,10}", "{1,20}", "{1,30}", "+")
]


class _Tokens:
    """The attributes that TokenizerWrapper reads."""

    bos_token_id: int | None = None

    def __init__(self, vocab: Vocab) -> None:
        special = vocab.control_ids | vocab.eog
        self.tokens = vocab.pieces()
        for id in special:  # grammars may name them; no text matches them
            self.tokens[id] = vocab.piece(id, special=True) or b"<unnamed>"
        self.special_token_ids = sorted(special)
        self.eos_token_id = min(vocab.eog, default=None)

    def __call__(self, text: bytes | str) -> list[int]:
        """Never used for text: grammars are compiled with `no_forcing`."""
        return []


def n_mask_bits(vocab: Vocab) -> int:
    """The number of tokens that masks are about: llguidance adds an end token if there is none."""
    return vocab.n_tokens + (not vocab.eog)


def guide_tokenizer(vocab: Vocab) -> LLTokenizer:
    """Build the tokenizer of a vocabulary. Takes 0.1 s for 32k tokens, 0.3 s for 128k."""
    from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415 - slow to import

    ends = sorted(vocab.eog) or None
    return LLTokenizer(TokenizerWrapper(_Tokens(vocab)), eos_token=ends, slices=_SLICES)
