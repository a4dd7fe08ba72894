"""The types of values in a GGUF header, with their numbers in the file.

They are those of the `gguf` package, which is slow to import.
Tested by tests/model/test_gguf_metadata.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

GGUF_DEFAULT_ALIGNMENT: Final = 32  # bytes; that of a file without `general.alignment`


class GGUFValueType(IntEnum):
    """The type of a value."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12
