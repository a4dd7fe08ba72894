"""Splits a text into words by the regular expressions of a pre-tokenizer.

    splitter = Splitter(PRE_TOKENIZERS["llama-bpe"].patterns)
    splitter.ends(np.frombuffer("Hello world".encode(), np.uint8))    # [5, 11]

Tests: tests/model/test_vocab_splitter.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence as InOrder
from tokenizers.pre_tokenizers import Split


class Splitter:
    """Splits texts. Immutable and thread-safe."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """`patterns`: see `PreTokenizer`."""
        self._cuts = InOrder([Split(Regex(pattern), "isolated") for pattern in patterns])

    def ends(self, utf8: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        """Return the offset of the end of each word, in bytes, of a text in UTF-8."""
        text = utf8.tobytes().decode()
        sizes = (len(word.encode()) for word, _ in self._cuts.pre_tokenize_str(text))
        return np.fromiter(accumulate(sizes), np.int32)
