"""Pre-tokenizers: the same words as each model's tokenizer."""

from __future__ import annotations

import pytest

from lamella.model.vocab.bpe import BYTES, BpeEncoder
from lamella.model.vocab.words import PRE_TOKENIZERS

TEXT = "I've  3456 cats, it'S\n\n café-Straße (x=1)!!\n 二十 \t x "


def words(name: str, text: str) -> list[str]:
    encoder = BpeEncoder([], [], [], PRE_TOKENIZERS[name])
    return [bytes(BYTES[c] for c in word).decode() for word in encoder.words(text)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["I", "'ve", " ", " 3456", " cats", ",", " it", "'", "S", "\n\n", " café",
                   "-", "Straße", " (", "x", "=", "1", ")!!", "\n", " 二十", " \t", " x", " "]),
        ("smollm", ["I", "'ve", "  ", "3", "4", "5", "6", " cats", ",", " it", "'", "S", "\n\n",
                    " café", "-", "Straße", " (", "x", "=", "1", ")!!", "\n", " 二十", " \t",
                    " x", " "]),
        ("llama-bpe", ["I", "'ve", " ", " ", "345", "6", " cats", ",", " it", "'S", "\n\n",
                       " café", "-Straße", " (", "x", "=", "1", ")!!\n", " 二十", " \t", " x",
                       " "]),
        ("qwen2", ["I", "'ve", " ", " ", "3", "4", "5", "6", " cats", ",", " it", "'S", "\n\n",
                   " café", "-Straße", " (", "x", "=", "1", ")!!\n", " 二十", " \t", " x", " "]),
        ("tekken", ["I", "'ve", " ", " ", "3", "4", "5", "6", " cats", ",", " it", "'S", "\n\n",
                    " café", "-Straße", " (", "x", "=", "1", ")!!\n", " 二十", " \t", " x", " "]),
        ("gpt-4o", ["I've", " ", " ", "345", "6", " cats", ",", " it'S", "\n\n", " café",
                    "-Straße", " (", "x", "=", "1", ")!!\n", " 二十", " \t", " x", " "]),
        # punctuation joins the following ASCII letters only
        ("deepseek-v3", ["I", "'ve", "  ", "345", "6", " cats", ",", " it", "'S", "\n\n", " café",
                         "-Stra", "ße", " (", "x", "=", "1", ")!!\n", " ", "二十", " \t", " x",
                         " "]),
        ("deepseek-coder", ["I", "'", "ve", "  ", "3", "4", "5", "6", " cats", ",", " it", "'",
                            "S", "\n", "\n", " café", "-", "Straße", " (", "x", "=", "1", ")!!",
                            "\n", " ", "二十", " \t", " x", " "]),
        ("falcon", ["I", "'", "ve", " ", " ", "345", "6", " cats", ",", " it", "'", "S", "\n\n",
                    " café", "-", "Straße", " ", "(", "x", "=", "1", ")!!", "\n", " 二十", " \t",
                    " x", " "]),
        ("default", ["I", "'", "ve", " ", " ", "345", "6", " cats", ",", " it", "'", "S", "\n\n",
                     " café", "-", "Straße", " ", "(", "x", "=", "1", ")!!", "\n", " 二十",
                     " \t", " x", " "]),
    ],
)  # fmt: skip
def test_the_words_of_a_text(name: str, expected: list[str]) -> None:
    assert words(name, TEXT) == expected


def test_a_capital_letter_ends_a_word_in_tekken_and_gpt_4o() -> None:
    for name in ("tekken", "gpt-4o"):
        assert words(name, "camelCase ÉcoleÀ HTTPServer ABC") == [
            "camel", "Case", " École", "À", " HTTPServer", " ABC",
        ]  # fmt: skip
    assert words("qwen2", "camelCase ÉcoleÀ") == ["camelCase", " ÉcoleÀ"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        # digits are grouped from the right
        ("tiny_aya", "1234567 12", ["1", "234", "567", " ", "12"]),
        ("afmoe", "1234567a 12", ["1", "234", "567", "a", " ", "12"]),
        ("spark2_5", "12345", [*"12345"]),
        ("deepseek-llm", "1234 it's ßé漢字", ["1234", " it", "'", "s", " ßé", "漢字"]),
        # newlines and spaces
        ("bailingmoe", "a\n\n\nb", ["a", "\n\n\n", "b"]),
        ("bailingmoe", "a.\n \n\tb", ["a", ".\n", " \n", "\tb"]),
        ("exaone-moe", "a.\n\nb", ["a", ".\n", "\n", "b"]),
        ("exaone-moe", "two words", ["two words"]),
        ("laguna", "a.\n\n b", ["a", ".", "\n\n", " b"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
        ("spark2_5", "a.\n\nb", ["a", ".", "\n", "\n", "b"]),
        ("bloom", "a. b(c)", ["a", ".", " b", "(", "c", ")"]),
        ("viking", "a12. b", ["a", "1", "2", ".", " b"]),
    ],
)
def test_the_words_of_a_short_text(name: str, text: str, expected: list[str]) -> None:
    assert words(name, text) == expected


@pytest.mark.parametrize(
    "name", sorted(name for name, pre in PRE_TOKENIZERS.items() if pre.byte_encode)
)
def test_words_contain_the_whole_text(name: str) -> None:
    text = TEXT + "".join(map(chr, [*range(1, 0x250), 0x200B, 0x3000, 0xE000, 0x1F600, 0x10FFFF]))
    assert "".join(words(name, text)) == text
    assert words(name, "") == []
