"""vocab: converts text to token ids and back, whole or as a stream.

    vocab = load_vocab(file.metadata)
    ids = vocab.tokenize("Once upon a time")
    text = vocab.detokenize(ids)

`vocab` has the code that all kinds of vocabularies share. `spm` and `bpe` encode plain text, and
`special` finds special tokens. Behavior and defaults are those of llama.cpp (src/llama-vocab.cpp);
docstrings name the differences.
"""

from .load import KINDS, load_vocab
from .metadata import VocabMetadata
from .token_types import TokenType
from .vocab import Encoder, FillTokens, SpecialTokens, TextDecoder, Vocab

__all__ = [
    "KINDS",
    "load_vocab",
    "Vocab",
    "TextDecoder",
    "TokenType",
    "SpecialTokens",
    "FillTokens",
    "Encoder",
    "VocabMetadata",
]
