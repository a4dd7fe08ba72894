"""The vocabulary: learned by SentencePiece from the text, used as Lamella uses it.

Pieces are merged as in Llama 2's vocabulary (BPE with scores, bytes for what has no piece), every
digit is a piece of its own, and two control tokens mark the turns of a conversation, as in ChatML.
The tokens of training come from Lamella's own `Vocab`, so that they are those of use. Tested by
tests/recipe/test_vocabulary.py.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import sentencepiece
from corpus import Document, texts, write_whole

from lamella.model.chat import CHATML, ChatTemplate
from lamella.model.vocab import SpecialTokens, TokenType, Vocab
from lamella.model.vocab.spm import SpmEncoder

UNK, BOS, EOS, TURN, END = range(5)
SPECIAL: Final = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
ROLES: Final = ("system", "user", "assistant")
TEMPLATE: Final = CHATML


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vocabulary as a GGUF file has it: text, score and type of each token."""

    texts: list[str]
    scores: list[float]
    types: list[int]

    def save(self, path: Path) -> None:
        data = {"texts": self.texts, "scores": self.scores, "types": self.types}
        write_whole(path, json.dumps(data, ensure_ascii=False))

    @classmethod
    def load(cls, path: Path) -> Pieces:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def vocab(self) -> Vocab:
        """Lamella's vocabulary of these pieces."""
        encoded = [text.encode() for text in self.texts]
        special = SpecialTokens(
            bos=BOS, eos=EOS, eot=END, unk=UNK, add_bos=True, add_eos=False,
            eog=frozenset((EOS, END)),
        )  # fmt: skip
        encoder = SpmEncoder(encoded, np.array(self.scores, np.float32), self.types, UNK)
        return Vocab(encoded, self.types, encoder, special, add_space_prefix=False)


def learn_pieces(documents: Iterable[Document], n_pieces: int) -> Pieces:
    """The pieces of a text. The same ones every time: one thread, no sampling."""
    # what is not ASCII comes as bytes: it is only ever read, and as a sign that it is not English
    lines = [text for document in documents for text in texts(document) if text.isascii()]
    lines += [role for role in ROLES for _ in range(len(lines) // 10)]  # they head every turn
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=n_pieces,
        byte_fallback=True,
        split_digits=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        unk_id=UNK, bos_id=BOS, eos_id=EOS, pad_id=-1,
        control_symbols=list(SPECIAL[TURN:]),
        num_threads=1,
        minloglevel=2,
    )  # fmt: skip
    learned = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(learned.get_piece_size())
    pieces = [learned.id_to_piece(id) for id in ids]
    types = [_type(learned, id) for id in ids]
    assert tuple(pieces[: len(SPECIAL)]) == SPECIAL, pieces[: len(SPECIAL)]
    return Pieces(pieces, [learned.get_score(id) for id in ids], types)


def _type(learned: sentencepiece.SentencePieceProcessor, id: int) -> int:
    if learned.is_unknown(id):
        return int(TokenType.UNKNOWN)
    if learned.is_control(id):
        return int(TokenType.CONTROL)
    return int(TokenType.BYTE if learned.is_byte(id) else TokenType.NORMAL)


class Tokenizer(Protocol):
    """What `Encoder` needs: a `Vocab`, or a whole `lamella.Model`."""

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]: ...


class Encoder:
    """Documents to token ids, and which of them the model is to learn to write."""

    def __init__(self, vocab: Tokenizer) -> None:
        self._vocab = vocab
        self._template = ChatTemplate(TEMPLATE)

    def encode(self, document: Document) -> tuple[list[int], list[bool]]:
        """The ids of a document, and for each whether the model is to write it: not what a user
        says, nor the frame of the turns.
        """
        if "story" in document:
            ids = [*self._vocab.tokenize(document["story"]), EOS]
            return ids, [False] + [True] * (len(ids) - 1)
        ids = self._vocab.tokenize(self._template.render(
            document["messages"], add_generation_prompt=False
        ), parse_special=True)  # fmt: skip
        return ids, self._written(ids)

    def _written(self, ids: list[int]) -> list[bool]:
        """True within answers and for the token that ends them."""
        head = self._vocab.tokenize("assistant\n", add_special=False)
        written = [False] * len(ids)
        for at, id in enumerate(ids):
            begin = at + 1 + len(head)
            if id == TURN and ids[at + 1 : begin] == head:
                end = ids.index(END, begin)
                written[begin : end + 1] = [True] * (end + 1 - begin)
        return written
