"""BPE merges against a plain implementation of the rule, and unusual files."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from vocab_makers import CTRL, UNK, USER, N, Token, bpe, merged, metadata, texts

from lamella.base.errors import ModelFileError, RequestError
from lamella.base.settings import NO_JIT
from lamella.model.vocab import Vocab, load_vocab
from lamella.model.vocab.bpe import BYTES

CHARACTERS = {byte: character for character, byte in BYTES.items()}


def parts(text: str, *merges: str, **values: object) -> list[str]:
    v = bpe(*merges, **values)  # type: ignore[arg-type]
    return texts(v, v.tokenize(text, add_special=False))


def test_random_merges_follow_the_rule() -> None:
    chance = random.Random(1)
    for _ in range(60):
        symbols, merges = list("abc"), []
        for _ in range(chance.randrange(1, 12)):
            left, right = chance.choice(symbols), chance.choice(symbols)
            merges.append(f"{left} {right}")
            symbols.append(left + right)
        v = bpe(*merges)
        for n in (*range(1, 16), 47, 48, 49, 90):  # long words are merged by another algorithm
            word = "".join(chance.choices("abc", k=n))
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
def test_a_merged_text_without_a_token_becomes_bytes(merges: list[str]) -> None:
    text = "  abc</s>"
    assert parts(text, merges=merges) == [CHARACTERS[byte] for byte in text.encode()]


def test_merges_may_pass_through_texts_without_a_token() -> None:
    more: list[Token] = [("abc", 0, N), ("xy", 0, CTRL), ("xyz", 0, N)]
    merges = ["a b", "ab c", "x y", "xy z", "Ġ a", "Ġa b"]
    assert parts("abc abd xyz", more=more, merges=merges, pre="superbpe") == [
        "abc", "Ġ", "a", "b", "d", "Ġ", "xyz",
    ]  # fmt: skip


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


def without(missing: Collection[int]) -> Vocab:
    tokens: list[Token] = [(c, 0, N) for c, byte in BYTES.items() if byte not in missing]
    return load_vocab(metadata(tokens, model="gpt2", pre="gpt-2", merges=[], scores=None))


def test_a_byte_without_a_token_is_an_error() -> None:
    v = without({ord("z"), 0xA9})
    assert len(v.tokenize("abc")) == 3
    for text, name in (("abz", "0x7A of the character 'z'"), ("xéy", "0xA9 of the character 'é'")):
        with pytest.raises(RequestError, match=f"no token for the byte {name}"):
            v.tokenize(text)


def test_bytes_that_utf_8_never_has_may_lack_a_token() -> None:
    v = without({0xC0, 0xC1, *range(0xF5, 0x100)})
    text = "".join(map(chr, [*range(0xD800), 0xFFFF, 0x10FFFF]))
    assert len(v.tokenize(text)) == len(text.encode())


@pytest.mark.parametrize("text", ["a", "ab", "xy", "二十", " ", "\n"])
def test_a_word_of_a_million_characters_takes_linear_time(text: str) -> None:
    v = bpe("a a", "aa aa", "a b", "b a", "ab ab", "Ġ Ġ", "Ċ Ċ", "x y", "xy xy", pre="gpt-2")
    text *= 10**6 // len(text)
    ids = v.tokenize(text)
    assert v.detokenize(ids) == text


def test_kernels_run_as_plain_python() -> None:
    merges = ["Ġ a", "c a", "f Ã", "fÃ ©", "ca fÃ©", "a a", "aa aa", "q q"]
    text = " a café\n" + "a" * 60
    ids = bpe(*merges, pre="llama-bpe", add_bos_token=False).tokenize(text)
    with NO_JIT.set(1):
        v = bpe(*merges, pre="llama-bpe", add_bos_token=False)
        assert v.tokenize(text) == ids
        assert v.detokenize(ids) == text


def test_characters_of_bytes_are_those_of_gpt_2() -> None:
    assert len(BYTES) == len(set(BYTES.values())) == 256
    assert [CHARACTERS[byte] for byte in (0x20, 0x0A, 0x09, 0x21, 0xAD, 0xFF, 0x00)] == [
        "Ġ", "Ċ", "ĉ", "!", "Ń", "ÿ", "Ā",
    ]  # fmt: skip
