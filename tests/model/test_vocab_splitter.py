"""Splitters: the same words as the regular expressions of each pre-tokenizer, in linear time."""

from __future__ import annotations

import random
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from lamella.base.settings import NO_JIT
from lamella.model.vocab.splitter import Splitter
from lamella.model.vocab.words import PRE_TOKENIZERS

NAMES = sorted({pre.patterns: name for name, pre in PRE_TOKENIZERS.items()}.values())
# all kinds of characters, and those that single expressions name
SIGNS = (
    "'sStTrReEvVmMlLdD  \n\r\t\xa0\u3000\u2028\x0b\x85 01239\u0661²ⅷ½ aAbBzZ"
    "éÉß\u017fİǅʰªκ\u039a\u0421\u0441א你々ー한ㄱㄅ"
    '\u3002\uff0c\uff01\u2026\u201c\u2018\u2014\u3001\ufe4f.,!?()[]{}<>|/\\_-+=*&^%$#@~`"'
    "\u200c\u0301\u093f\u0e31\u20e3\U0001f600\U00020000\U0010ffff\ue000\u0378\u1c89"
)


def utf8(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


def random_texts(n: int) -> list[str]:
    chance = random.Random(1)
    texts = []
    for _ in range(n):
        signs = chance.sample(SIGNS, chance.choice((2, 4, 8, len(SIGNS))))
        repeat = chance.choice((1, 1, 3, 9))
        texts.append("".join(c * chance.randint(1, repeat) for c in chance.choices(signs, k=20)))
    return texts


@pytest.mark.parametrize("name", NAMES)
def test_words_are_those_of_oniguruma(name: str) -> None:
    patterns = PRE_TOKENIZERS[name].patterns
    splitter = Splitter(patterns)
    oniguruma = Sequence([Split(Regex(pattern), "isolated") for pattern in patterns])
    for text in (*random_texts(200), SIGNS, "", "a" + " " * 1500 + "b"):
        words = oniguruma.pre_tokenize_str(text)
        expected = [*accumulate(len(word.encode()) for word, _ in words)]
        assert splitter.ends(utf8(text)).tolist() == expected, text


@pytest.mark.parametrize("name", NAMES)
def test_hostile_texts_take_linear_time(name: str) -> None:
    # at quadratic time, each would take minutes
    splitter = Splitter(PRE_TOKENIZERS[name].patterns)
    for unit in (" ", "\n", " \n", "1", "a", "A", "aA", "\u0301", "你", ".", "'", "\U0001f600"):
        text = utf8(unit * 200_000)
        assert splitter.ends(text)[-1] == len(text)


@pytest.mark.parametrize("name", ["qwen2", "deepseek-v3"])
def test_words_are_the_same_without_the_compiler(name: str) -> None:
    splitter = Splitter(PRE_TOKENIZERS[name].patterns)
    for text in (SIGNS, "", *random_texts(10)):
        compiled = splitter.ends(utf8(text)).tolist()
        with NO_JIT.set(1):
            assert splitter.ends(utf8(text)).tolist() == compiled
