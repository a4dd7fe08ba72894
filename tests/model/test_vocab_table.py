"""The table of texts against a dict."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lamella.base.settings import NO_JIT
from lamella.model.gguf.strings import Strings
from lamella.model.vocab import TokenType
from lamella.model.vocab.table import TextIndex, encodable


@pytest.mark.parametrize("no_jit", [0, 1])
def test_texts_are_found(no_jit: int) -> None:
    rng = random.Random(1)
    texts = [bytes(rng.choices(b"ab\0\xff", k=rng.randrange(6))) for _ in range(500)]
    expected: dict[bytes, int] = {}
    for id, text in enumerate(texts):
        expected.setdefault(text, id)
    with NO_JIT.set(no_jit):
        index = TextIndex(Strings.of(texts))
        for text in [*texts, b"c", b"aaaaaaaaaa", b""]:
            assert index.find(text) == expected.get(text)
        assert b"" in index
        assert b"c" not in index


def test_other_texts_are_not_found() -> None:
    types = [TokenType.CONTROL, TokenType.NORMAL, TokenType.UNKNOWN, TokenType.USER_DEFINED]
    texts = Strings.of([b"a", b"b", b"b", b"a"])
    index = TextIndex(texts, encodable(types))
    assert (index.find(b"a"), index.find(b"b")) == (3, 1)
    assert encodable(types).tolist() == [0, 1, 0, 1]


def test_an_empty_table() -> None:
    assert TextIndex(Strings.of([])).find(b"a") is None


def test_many_equal_texts_take_linear_time() -> None:
    texts = Strings(np.frombuffer(b"ab", np.uint8), np.zeros(10**6, int), np.full(10**6, 2))
    assert TextIndex(texts).find(b"ab") == 0
