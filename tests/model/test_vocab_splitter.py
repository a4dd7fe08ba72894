"""Splitters: the same words as the regular expressions."""

from __future__ import annotations

import numpy as np

from lamella.model.vocab.splitter import Splitter
from lamella.model.vocab.words import PRE_TOKENIZERS


def test_ends_of_words_are_offsets_of_bytes() -> None:
    splitter = Splitter(PRE_TOKENIZERS["qwen2"].patterns)
    text = "é it's 12\n".encode()
    assert splitter.ends(np.frombuffer(text, np.uint8)).tolist() == [2, 5, 7, 8, 9, 10, 11]
    assert splitter.ends(np.empty(0, np.uint8)).tolist() == []
