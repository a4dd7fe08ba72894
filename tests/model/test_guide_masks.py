"""Masks of several texts, computed on a thread of their own."""

from __future__ import annotations

import numpy as np
import pytest
from guides import EOS, allowed, byte_vocab

from lamella.model.guide import Compiler, GrammarKind, GrammarSpec, MaskComputer


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(byte_vocab())


@pytest.mark.parametrize("helps", [False, True])
def test_masks_are_those_of_each_matcher(compiler: Compiler, helps: bool) -> None:
    regexes = ("a", "[b-d]", "e?")
    matchers = [compiler.compile(GrammarSpec(GrammarKind.REGEX, r)).matcher() for r in regexes]
    masks = MaskComputer(compiler.tokenizer.vocab_size, 4, inline=helps)
    masks.begin(matchers)
    together = [mask.copy() for mask in masks.take()]
    found = [np.flatnonzero(np.unpackbits(m.view(np.uint8), bitorder="little")) for m in together]
    assert [ids.tolist() for ids in found] == [[97], [98, 99, 100], [101, EOS]]
    assert [allowed(masks, matcher) for matcher in matchers] == [ids.tolist() for ids in found]
    assert masks.seconds > 0
    masks.close()


def test_no_matchers_need_no_masks(compiler: Compiler) -> None:
    masks = MaskComputer(compiler.tokenizer.vocab_size, 1)
    masks.begin([])
    assert masks.take() == []
    masks.close()
