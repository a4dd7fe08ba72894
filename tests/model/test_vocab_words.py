"""Pre-tokenizers: the same words as each model's tokenizer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from lamella.model.vocab.splitter import Splitter
from lamella.model.vocab.words import PRE_TOKENIZERS

TEXT = "I've  3456 cats, it'S\n\n café-Straße (x=1)!!\n 二十 \t x "


def words(name: str, text: str) -> list[str]:
    utf8 = text.encode()
    ends = Splitter(PRE_TOKENIZERS[name].patterns).ends(np.frombuffer(utf8, np.uint8)).tolist()
    return [utf8[begin:end].decode() for begin, end in pairwise([0, *ends])]


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
        ("superbpe", "a 1234567 12², 123456", ["a ", "1", "234", "567", " ", "12²", ", ", "123",
                                               "456"]),
        # combining marks are letters
        ("qwen35", "e\u0301te\u0301 \u0301\u0302.", ["e\u0301te\u0301", " \u0301\u0302", "."]),
        ("qwen2", "e\u0301te\u0301", ["e", "\u0301te", "\u0301"]),
        ("granite-embed-multi-97m", "नमस्ते", ["नमस्ते"]),
        # scripts
        ("kimi-k2", "Hi你好world々's A1234", ["Hi", "你好", "world", "々", "'s", " A", "123", "4"]),
        ("youtu", "ab한글\uff0c\uff01「x」ㄅㄆ漢字1a", ["ab", "한글", "\uff0c\uff01「", "x",
                                                    "」", "ㄅㄆ", "漢字", "1", "a"]),
        ("chameleon", "a<sentinel:1>IMGIMGABZa\t   b.", ["a", "<", "sentinel", ":", "1", ">",
                                                         "IMGIMGABZ", "a", "\t", "  ", " b", "."]),
        ("ufakzeka", "Ankara'da it's", ["Ankara", "'da", " it", "'s"]),
        ("gpt-2", "Ankara'da", ["Ankara", "'d", "a"]),
    ],
)  # fmt: skip
def test_the_words_of_a_short_text(name: str, text: str, expected: list[str]) -> None:
    assert words(name, text) == expected


@pytest.mark.parametrize(
    "name", sorted(name for name, pre in PRE_TOKENIZERS.items() if pre.byte_encode)
)
def test_words_contain_the_whole_text(name: str) -> None:
    text = TEXT + "".join(map(chr, [*range(1, 0x250), 0x200B, 0x3000, 0xE000, 0x1F600, 0x10FFFF]))
    assert "".join(words(name, text)) == text
    assert words(name, "") == []


def test_flags_of_pre_tokenizers() -> None:
    flags = {
        name: (pre.ignore_merges, pre.add_bos, pre.add_sep) for name, pre in PRE_TOKENIZERS.items()
    }
    ignore_merges = {name for name, (ignore, _, _) in flags.items() if ignore}
    assert ignore_merges == {
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        *("jina-v5-nano", "minicpm5", "youtu", "glm4", "glm5", "tekken", "granite-embed-multi-97m"),
    }
    assert {name for name, (_, bos, _) in flags.items() if bos} - ignore_merges == {
        *("chameleon", "gemma4", "granite-embed-multi-311m"),
    }
    assert {name for name, (_, _, sep) in flags.items() if sep} == {
        *("jina-v1-en", "jina-v2-code", "roberta-bpe"),
    }
