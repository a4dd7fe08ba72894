"""The interface through which a vocabulary reads a file's metadata."""

from __future__ import annotations

import builtins
from typing import Protocol, overload

import numpy as np
import numpy.typing as npt

from ..gguf import Strings


class VocabMetadata(Protocol):
    """Typed access to metadata, implemented by `model.gguf.Metadata`.

    All methods raise ModelFileError if the key is missing without a default, or if its value has
    another type.
    """

    def int(self, key: builtins.str, default: builtins.int | None, /) -> builtins.int | None: ...
    def bool(self, key: builtins.str, default: builtins.bool, /) -> builtins.bool: ...
    @overload
    def str(self, key: builtins.str, /) -> builtins.str: ...
    @overload
    def str(self, key: builtins.str, default: builtins.str, /) -> builtins.str: ...
    def bytes_strings(self, key: builtins.str, /) -> Strings: ...
    def int_array(self, key: builtins.str, default: None, /) -> npt.NDArray[np.integer] | None: ...
    def floats(self, key: builtins.str, default: None, /) -> npt.NDArray[np.float32] | None: ...


def key(name: str) -> str:
    """Return the full name of a vocabulary's key."""
    return f"tokenizer.ggml.{name}"
