"""The types of tokens. Tests: tests/model/test_vocab_text.py."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

TypeArray: TypeAlias = npt.NDArray[np.uint8]  # a TokenType for each token, [n_tokens]


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`; sentencepiece has the same numbers from 1 to 6."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def ids_of_types(types: TypeArray, *wanted: int) -> list[int]:
    """Return the ids of all tokens of these types, in ascending order."""
    ids: list[int] = np.flatnonzero(np.isin(types, wanted)).tolist()
    return ids
