"""vocab: text to token ids and back, whole or as a stream.

    vocab = load_vocab(file.metadata)
    ids = vocab.tokenize("Once upon a time")
    text = vocab.detokenize(ids)

`vocab` is what all kinds of vocabularies share; `spm` and `bpe` merge a text's tokens, each in its
own way, and `special` finds the tokens with a meaning of their own. Behaviour and defaults are
those of llama.cpp (src/llama-vocab.cpp); where it differs, a docstring says so.
"""

from .load import load_vocab
from .metadata import VocabMetadata
from .vocab import Encoder, SpecialTokens, TextDecoder, TokenType, Vocab

__all__ = [
    "load_vocab",
    "Vocab",
    "TextDecoder",
    "TokenType",
    "SpecialTokens",
    "Encoder",
    "VocabMetadata",
]
