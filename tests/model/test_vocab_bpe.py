"""BPE merges against a plain implementation of the rule, and unusual files."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from vocab_makers import CTRL, UNK, USER, N, Token, bpe, texts

from lamella.base.errors import ModelFileError, RequestError
from lamella.model.vocab import TokenType
from lamella.model.vocab.bpe import BYTES, BpeEncoder, parts_of
from lamella.model.vocab.words import PRE_TOKENIZERS, PreTokenizer

CHARACTERS = {byte: character for character, byte in BYTES.items()}


def parts(text: str, *merges: str, **values: object) -> list[str]:
    v = bpe(*merges, **values)  # type: ignore[arg-type]
    return texts(v, v.tokenize(text, add_special=False))


def merged(word: str, merges: list[str]) -> list[str]:
    """Merge by BPE's rule: the pair that is first in the list, equal pairs from left to right."""
    symbols = list(word)
    while True:
        pairs = [
            (merges.index(f"{a} {b}"), i)
            for i, (a, b) in enumerate(pairwise(symbols))
            if f"{a} {b}" in merges
        ]
        if not pairs:
            return symbols
        i = min(pairs)[1]
        symbols[i : i + 2] = ["".join(symbols[i : i + 2])]


def test_random_merges_follow_the_rule() -> None:
    chance = random.Random(1)
    for _ in range(60):
        symbols, merges = list("abc"), []
        for _ in range(chance.randrange(1, 12)):
            left, right = chance.choice(symbols), chance.choice(symbols)
            merges.append(f"{left} {right}")
            symbols.append(left + right)
        v = bpe(*merges)
        for _ in range(20):
            word = "".join(chance.choices("abc", k=chance.randrange(1, 16)))
            assert texts(v, v.tokenize(word, add_special=False)) == merged(word, merges)


def test_every_text_round_trips() -> None:
    v = bpe("Ġ a", "c a", "f Ã", "fÃ ©", "ca fÃ©")
    assert texts(v, v.tokenize(" a café", add_special=False)) == ["Ġa", "Ġ", "cafÃ©"]
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x3000), 0x1F600, 0x10FFFF]))
    for text in (everything, "", " ", "  \n\n x", "\0", "naïve 二十 🙂"):
        ids = v.tokenize(text, add_special=False)
        assert v.detokenize(ids) == text
        stream = v.stream()
        assert "".join(map(stream.push, ids)) + stream.flush() == text


def test_a_token_can_be_part_of_a_character() -> None:
    v = bpe()
    ids = v.tokenize("é", add_special=False)
    assert [v.piece(id) for id in ids] == [b"\xc3", b"\xa9"]
    stream = v.stream()
    assert [stream.push(id) for id in ids] == ["", "é"]


def test_ignore_merges_keeps_words_that_are_tokens() -> None:
    merges = ["a b", "b c"]
    more: list[Token] = [("abc", 0, N)]
    assert parts("abc", *merges, more=more) == ["ab", "c"]
    assert parts("abc", *merges, more=more, pre="llama-bpe", add_bos_token=False) == ["abc"]


def test_merges_stay_within_a_word() -> None:
    assert parts("ab ab", "a b", "b Ġ", "ab Ġ") == ["ab", "Ġ", "ab"]
    assert parts("12", "1 2", pre="gpt-2") == ["12"]
    assert parts("12", "1 2", pre="qwen2") == ["1", "2"]


def test_text_never_becomes_control_tokens() -> None:
    more: list[Token] = [("ab", 0, CTRL), ("cd", 0, UNK), ("ef", 0, USER)]
    merges = ["a b", "c d", "e f"]
    v = bpe(more=more, merges=merges)
    assert texts(v, v.tokenize("abcdef", add_special=False)) == ["a", "b", "c", "d", "ef"]
    ids = v.tokenize("abcdef", add_special=False, parse_special=True)
    assert texts(v, ids) == ["ab", "cd", "ef"]
    assert v.detokenize(ids) == "ef"
    assert v.detokenize(ids, special=True) == "abcdef"


def test_no_space_prefix_is_added() -> None:
    more: list[Token] = [("<x>", 0, USER)]
    for flag in (False, True):  # as in llama.cpp, only SPM uses the key
        assert parts("a<x>a", more=more, add_space_prefix=flag) == ["a", "<x>", "a"]


@pytest.mark.parametrize("merges", [["Ġ Ġ"], ["a b", "ab c"], ["< /", "</ s"], ["q zz"]])
def test_merges_without_a_token_are_ignored(merges: list[str]) -> None:
    text = "  abc</s>"
    assert parts(text, merges=merges) == [CHARACTERS[byte] for byte in text.encode()]


def test_files_may_have_duplicate_and_empty_tokens_and_merges() -> None:
    more: list[Token] = [("ab", 0, N), ("bc", 0, N), ("a", 0, N), ("bc", 0, N), ("", 0, N)]
    v = bpe(more=more, merges=["b c", "a b", "b c", "q zz", "x y"])
    ids = v.tokenize("abcxy", add_special=False)
    assert texts(v, ids) == ["a", "bc", "x", "y"]
    assert ids[:2] == [ord("a"), 257]  # the first of equal tokens


def test_tokens_outside_the_byte_characters_are_plain_text() -> None:
    v = bpe(more=[("日本", 0, N), (b"\xff\xfe", 0, N), ("a b", 0, N)])
    assert [v.piece(id) for id in range(v.n_tokens - 3, v.n_tokens)] == [
        "日本".encode(), b"\xff\xfe", b"a b",
    ]  # fmt: skip


@pytest.mark.parametrize("merge", ["", "ab", "a\tb"])
def test_an_invalid_merge_is_named(merge: str) -> None:
    with pytest.raises(ModelFileError, match=r"merges\[1\] is .* must be two tokens"):
        bpe(merges=["a b", merge])


def test_a_byte_without_a_token_is_an_error() -> None:
    tokens = [character.encode() for character in BYTES if character != "z"]
    encoder = BpeEncoder(tokens, [TokenType.NORMAL] * len(tokens), [], PreTokenizer(()))
    assert len(encoder.encode("abc")) == 3
    with pytest.raises(RequestError, match="the byte 0x7A, for which the vocabulary has no token"):
        encoder.encode("abz")


def test_bytes_that_utf_8_never_has_may_lack_a_token() -> None:
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}
    tokens = [character.encode() for character, byte in BYTES.items() if byte not in never]
    encoder = BpeEncoder(tokens, [TokenType.NORMAL] * len(tokens), [], PreTokenizer(()))
    text = "".join(map(chr, [*range(0xD800), 0xFFFF, 0x10FFFF]))
    assert len(encoder.encode(text)) == len(text.encode())


# one name per pre-tokenizer; words of K-EXAONE may contain spaces
PRE_NAMES = sorted({pre: name for name, pre in PRE_TOKENIZERS.items() if pre.byte_encode}.values())
for superword in ("exaone-moe", "superbpe"):  # words with spaces
    PRE_NAMES.remove(superword)


@pytest.mark.parametrize("name", PRE_NAMES)
def test_a_long_text_is_split_at_the_end_of_a_word(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamella.model.vocab.bpe.N_PART", 400)
    chance = random.Random(1)
    encoder = BpeEncoder([], [], [], PRE_TOKENIZERS[name])
    for signs in ("ab    \n\n1'é\u0301二.=\r\t", "aB 1 =+<$|` ' -_()二\n"):
        text = "".join(chance.choices(signs, k=50_000))
        found = list(parts_of(text))
        assert len(found) > 120
        assert [w for part in found for w in encoder.words(part)] == encoder.words(text)


def test_a_text_of_one_long_word_is_split_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamella.model.vocab.bpe.N_PART", 100)
    for text in (" " * 1001, "a" * 1001, "aé" * 500, "\n" * 100, "", " a" * 50):
        v = bpe("Ġ Ġ", "ĠĠ ĠĠ", pre="qwen2")
        assert v.detokenize(v.tokenize(text)) == text


def test_characters_of_bytes_are_those_of_gpt_2() -> None:
    assert len(BYTES) == len(set(BYTES.values())) == 256
    assert [CHARACTERS[byte] for byte in (0x20, 0x0A, 0x09, 0x21, 0xAD, 0xFF, 0x00)] == [
        "Ġ", "Ċ", "ĉ", "!", "Ń", "ÿ", "Ā",
    ]  # fmt: skip
