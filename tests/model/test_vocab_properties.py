"""Properties of all kinds of vocabularies: texts and back, cuts, threads, and their kernels."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final

import pytest
from vocab_makers import BYTE_TOKENS, CTRL, HEAD, UNK, N, Token, bpe, metadata, normal, vocab

from lamella.kernels.cpu.vocab.access import ArrayKernel
from lamella.model.vocab import Vocab, load_vocab

SPECIAL: Final = "<|x|>"
X: Final[Token] = (SPECIAL, 0, CTRL)
LETTERS: Final = "abAÉé 水ß각\u0301\n.,'12😀\t\u00a0"
WORDS: Final = ("ab", "ba", "aa", " a", " ab", "éa", "水水", "12", "1", "\n\n")


def _spm() -> Vocab:
    return vocab(X, *normal(*(word.replace(" ", "▁") for word in WORDS), *"ab▁é水12"))


def _bpe() -> Vocab:
    return bpe("a b", "Ġ a", "Ġa b", "b a", "1 2", "Ã ©", more=[X], pre="llama-bpe")


def _char_bpe() -> Vocab:
    tokens = [X, *HEAD, *BYTE_TOKENS, *normal(*"ab▁水", "ab", "▁a", "水水")]
    merges = [b"a b", "▁ a".encode(), "水 水".encode()]
    values: dict[str, Any] = {"model": "gemma4", "scores": None, "merges": merges}
    return load_vocab(metadata(tokens, **values, bos_token_id=2))


def _wordpiece() -> Vocab:
    tokens: list[Token] = [(f"[{name}]", 0, CTRL) for name in ("CLS", "SEP")]
    tokens += [X, ("[UNK]", 0, UNK)]
    single = [text for c in "abe水s12.,'😀" for text in (f"▁{c}", c)]
    jamo = [text for c in unicodedata.normalize("NFD", "각") for text in (f"▁{c}", c)]
    texts = [*single, *jamo, "▁ß", "ß", "▁ab", "ba", "12"]
    return load_vocab(metadata([*tokens, *normal(*texts)], model="bert", scores=None))


def _unigram() -> Vocab:
    words = [word.replace(" ", "▁") for word in WORDS]
    tokens = [X, ("</s>", 0, CTRL), ("<unk>", 0, UNK), *normal(*words, *LETTERS.replace(" ", "▁"))]
    return load_vocab(metadata(tokens, model="t5", add_space_prefix=True))


def _rwkv() -> Vocab:
    singles: list[Token] = [(repr(bytes([byte]))[2:-1], 0, N) for byte in range(256)]
    words = normal(*(repr(word.encode())[2:-1] for word in WORDS))
    return load_vocab(metadata([X, *singles, *words], model="rwkv", scores=None))


def _plamo2() -> Vocab:
    tokens = [X, *HEAD, *BYTE_TOKENS, *normal(*WORDS)]
    return load_vocab(metadata(tokens, model="plamo2"))


MAKERS: Final[dict[str, Callable[[], Vocab]]] = {
    "spm": _spm,
    "bpe": _bpe,
    "char_bpe": _char_bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
    "rwkv": _rwkv,
    "plamo2": _plamo2,
}


@cache
def made(kind: str) -> Vocab:
    return MAKERS[kind]()


def some_texts(seed: int, n: int = 200) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(n):
        yield "".join(rng.choices([*LETTERS, *WORDS], k=rng.randrange(25)))


def lowered(text: str) -> str:
    """Return a text as WordPiece sees it, without spaces."""
    plain = (c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    return "".join("".join(plain).lower().split())


@pytest.mark.parametrize("kind", MAKERS)
def test_detokenized_ids_are_the_text(kind: str) -> None:
    v = made(kind)
    for text in some_texts(1):
        ids = v.tokenize(text)
        found = v.detokenize(ids)
        if kind == "wordpiece":
            assert lowered(found) == lowered(text)
            assert v.tokenize(found) == ids  # nothing more is lost
            continue
        assert found == text
        stream = v.stream()
        streamed = "".join(map(stream.push, ids)) + stream.flush()
        assert streamed == (f" {text}" if v.add_space_prefix and text else text)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_ids_between_special_tokens_are_those_of_the_texts_alone(kind: str) -> None:
    v = made(kind)
    special = v.tokenize(SPECIAL, add_special=False, parse_special=True)
    assert len(special) == 1
    texts = list(some_texts(2, 40))
    together = v.tokenize(SPECIAL.join(texts), add_special=False, parse_special=True)
    parts = [v.tokenize(text, add_special=False) for text in texts]
    assert together == [id for part in parts for id in (*part, *special)][:-1]


@pytest.mark.parametrize("kind", MAKERS)
def test_threads_get_the_same_ids(kind: str) -> None:
    v = made(kind)
    texts = [text * 50 for text in some_texts(3, 40)]
    alone = [v.tokenize(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(MAKERS[kind]().tokenize, texts)) == alone


@pytest.mark.parametrize("kind", MAKERS)
def test_the_kernels_of_a_vocabulary_are_those_that_it_calls(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    v, called = made(kind), list[str]()
    call = ArrayKernel.__call__

    def recorded(self: ArrayKernel, *args: Any) -> None:
        called.append(self.name)
        call(self, *args)

    monkeypatch.setattr(ArrayKernel, "__call__", recorded)
    v.tokenize(f"a b{SPECIAL}", parse_special=True)
    assert set(called) == {kernel.name for kernel in v.kernels}
    v.load_kernels()
    assert all(kernel.address for kernel in v.kernels)


@pytest.mark.parametrize("kind", MAKERS)
def test_all_pieces_are_those_of_each_token(kind: str) -> None:
    vocab = MAKERS[kind]()
    assert vocab.pieces() == [vocab.piece(id) for id in range(vocab.n_tokens)]
