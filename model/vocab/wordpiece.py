"""WordPiece encoding: vocabularies of BERT.

Text is normalized and split into words. A word becomes the longest token that it starts with, then
the longest token of the rest, and so on. In GGUF files the first token of a word starts with
U+2581, and other tokens lack the "##" of BERT's own files. Knows no special tokens.
Tests: tests/model/test_vocab_wordpiece.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from ...base.errors import RequestError
from .bpe import ids_of_texts, parts_of
from .spm import SPACE

N_WORD_MAX: Final = 100
"""Characters of the longest word that is not unknown: `max_input_chars_per_word` of all models."""

_UNKNOWN: Final = " "  # the library's text for unknown words, which no token has


class WordPieceEncoder:
    """Encodes as the models' own tokenizers do (`BertTokenizer` of Hugging Face transformers).

    llama.cpp (`llm_tokenizer_wpm_session`) differs: it has no limit for the length of words, it
    lowers fewer letters, and text can become control tokens.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        types: Sequence[int],
        unk: int | None,
        *,
        lowercase: bool,
        strip_accents: bool,
    ) -> None:
        """
        Args:
            tokens: the texts of the tokens. The first of equal texts is used.
            types: a `TokenType` for each token.
            unk: the token for words that are not made of tokens.
            lowercase: convert text to lower case.
            strip_accents: remove accents.
        """
        self.pieces = [token.replace(SPACE.encode(), b" ") for token in tokens]
        self._unk = unk
        self._none = len(tokens)
        ids = ids_of_texts([token.decode(errors="replace") for token in tokens], types)
        vocab = {
            text.removeprefix(SPACE) if text.startswith(SPACE) else f"##{text}": id
            for text, id in ids.items()
        }
        model = WordPiece(
            {**vocab, _UNKNOWN: self._none},
            unk_token=_UNKNOWN,
            max_input_chars_per_word=N_WORD_MAX,
        )
        self._tokenizer = Tokenizer(model)
        self._tokenizer.normalizer = BertNormalizer(
            strip_accents=strip_accents, lowercase=lowercase
        )
        self._tokenizer.pre_tokenizer = BertPreTokenizer()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens and without lone surrogates.

        Raises:
            RequestError: a word is not made of tokens, and the vocabulary has no unknown token.
        """
        ids: list[int] = []
        for part in parts_of(text):
            ids += self._tokenizer.encode(part, add_special_tokens=False).ids
        if self._none not in ids:
            return ids
        if self._unk is None:
            raise RequestError("the text has words for which the vocabulary has no tokens")
        return [self._unk if id == self._none else id for id in ids]
