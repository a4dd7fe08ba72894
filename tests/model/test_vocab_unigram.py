"""Unigram against sentencepiece with a small trained model, and unusual vocabularies."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from vocab_makers import BYTE, CTRL, UNK, UNUSED, USER, N, Token, metadata, texts

from lamella.base.errors import ModelFileError, RequestError
from lamella.base.settings import NO_JIT
from lamella.model.vocab import Vocab, load_vocab

HEAD: list[Token] = [("<pad>", 0, CTRL), ("</s>", 0, CTRL), ("<unk>", 0, UNK)]
A = len(HEAD)
LETTERS = "abcdeé 水がﾊﾝｶ½ﬁ각①\u0301\u3000\n\t\u200b\ufdfa😀"


@pytest.fixture(params=["compiled", "plain Python"], autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    with NO_JIT.set(request.param != "compiled"):
        yield request.param


def unigram(*tokens: Token, **values: object) -> Vocab:
    """Return a vocabulary of `<pad>`, `</s>`, `<unk>`, then `tokens`."""
    return load_vocab(metadata([*HEAD, *tokens], model="t5", **values))


def plain(v: Vocab, text: str) -> list[str]:
    return texts(v, v.tokenize(text, add_special=False))


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Return (number, bytes) of each field with bytes, of a message of protocol buffers."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 0x80:
                return value

    while at < len(message):
        head = varint()
        if head & 7 == 2:
            n = varint()
            yield head >> 3, message[at : at + n]
            at += n
        elif head & 7 == 5:
            at += 4
        else:
            varint()


@cache
def trained(add_prefix: bool, merge_spaces: bool) -> tuple[SentencePieceProcessor, Vocab, bytes]:
    """Return sentencepiece's tokenizer, ours, and the map of characters."""
    rng = random.Random(0)
    model = io.BytesIO()
    lines = ["".join(rng.choices("abcde 水がé", k=20)) for _ in range(300)]
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="unigram",
        vocab_size=120,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        unk_piece="<unk>",
        add_dummy_prefix=add_prefix,
        remove_extra_whitespaces=merge_spaces,
        num_threads=1,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    proto = model.getvalue()
    processor = SentencePieceProcessor(model_proto=proto)
    normalizer = dict(fields(dict(fields(proto))[3]))
    pieces: list[Token] = [
        (processor.id_to_piece(id), processor.get_score(id), N) for id in range(A, len(processor))
    ]
    v = unigram(
        *pieces,
        precompiled_charsmap=list(normalizer[2]),
        add_space_prefix=add_prefix,
        remove_extra_whitespaces=merge_spaces,
    )
    return processor, v, normalizer[2]


@pytest.mark.parametrize("merge_spaces", [True, False])
@pytest.mark.parametrize("add_prefix", [True, False])
def test_texts_become_the_tokens_of_sentencepiece(
    add_prefix: bool, merge_spaces: bool, kernels: str
) -> None:
    processor, v, _ = trained(add_prefix, merge_spaces)
    rng = random.Random(1)
    for _ in range(500 if kernels == "compiled" else 50):
        text = "".join(rng.choices(LETTERS, k=rng.randrange(25)))
        ids = v.tokenize(text, add_special=False)
        assert ids == processor.encode(text), ascii(text)


def test_the_sum_of_scores_is_the_highest() -> None:
    v = unigram(("a", -1, N), ("b", -1, N), ("ab", -3, N), ("abab", -3.5, N), ("c", -1, N))
    assert plain(v, "ab") == ["a", "b"]
    assert plain(v, "abab") == ["abab"]
    assert plain(v, "cababc") == ["c", "abab", "c"]
    tie = unigram(("a", -1, N), ("b", -1, N), ("ab", -2, N))
    assert plain(tie, "ab") == ["ab"]  # found first, as it begins first


def test_unknown_characters_that_follow_each_other_are_one_token() -> None:
    v = unigram(("a", -1, N), ("é😀", -1, N))
    assert plain(v, "aéé😀😀a😀") == ["a", "<unk>", "é😀", "<unk>", "a", "<unk>"]
    assert plain(v, "") == []
    none = unigram(("a", -1, N), unknown_token_id=None)
    assert none.unk == 2
    with pytest.raises(RequestError, match="no tokens"):
        load_vocab(metadata([("a", 0, N), ("b", 0, N)], model="t5")).tokenize("c")


def test_user_defined_tokens_have_a_score_of_0_and_others_are_not_encoded() -> None:
    v = unigram(("a", -1, N), ("aa", -9, USER), ("aaa", 9, UNUSED), ("aaaa", 9, CTRL))
    assert plain(v, "aaaa") == ["aa", "aa"]
    made = unigram(
        ("½", -1, N), ("1\u20442", -9, USER), precompiled_charsmap=list(trained(True, True)[2])
    )
    assert plain(made, "½") == ["1\u20442"]


def test_byte_tokens_are_shown_as_bytes() -> None:
    v = unigram(("a", -1, N), ("<0x41>", -1, BYTE))
    assert v.piece(A + 1) == b"A"
    assert plain(v, "a<0x41>")[0] == "a"
    with pytest.raises(ModelFileError, match=r"tokens\[3\] .* BYTE token"):
        unigram(("b", -1, BYTE))


def test_the_special_tokens_of_t5() -> None:
    v = unigram(("a", -1, N))
    assert (v.bos, v.eos, v.unk, v.pad) == (None, 1, 2, 0)
    assert (v.add_bos, v.add_eos) == (False, True)
    assert v.tokenize("a") == [A, 1]


def test_infinite_scores_and_many_nodes_are_valid() -> None:
    v = unigram(("a", -np.inf, N), ("b", np.inf, N), ("ab", -1, N), ("aaab", np.inf, N))
    assert plain(v, "aaabab") == ["aaab", "a", "b"]


def test_a_space_prefix_is_removed_from_detokenized_text() -> None:
    v = unigram(("▁a", -1, N), ("▁", -1, N), ("a", -1, N), add_space_prefix=True)
    assert v.tokenize(" a") == [A + 1, A, 1]
    assert v.detokenize([A + 1, A, 1]) == " a"
    merged = unigram(
        ("▁a", -1, N), ("▁", -1, N), add_space_prefix=True, remove_extra_whitespaces=True
    )
    assert merged.tokenize("  a   a  ") == [A, A, 1]
    assert merged.detokenize([A, A, 1]) == "a a"


@pytest.mark.parametrize("map", [b"\1", b"\5\0\0\0abcd", b"\3\0\0\0abcd", b"\xff\xff\xff\xffabcd"])
def test_an_invalid_map_of_characters_is_named(map: bytes) -> None:
    with pytest.raises(ModelFileError, match=r"precompiled_charsmap has . bytes"):
        unigram(("a", -1, N), precompiled_charsmap=list(map))


def test_a_map_with_random_content_reads_only_its_own_bytes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        units = rng.integers(0, 2**32, 64, np.uint32)
        units[1:] |= np.uint32(0x100)
        blob = struct.pack("<I", 256) + units.tobytes() + rng.bytes(20)
        v = unigram(("a", -1, N), precompiled_charsmap=list(blob))
        v.tokenize("".join(map(chr, range(256))))


@pytest.mark.parametrize("unit", ["a", " ", "a ", "水", "\u0301", "\ufdfa", "😀", "ab"])
def test_long_texts_are_fast(unit: str, kernels: str) -> None:
    _, v, _ = trained(True, True)
    n = 200_000 if kernels == "compiled" else 5_000
    assert len(v.tokenize(unit * (n // len(unit)))) <= 18 * n
