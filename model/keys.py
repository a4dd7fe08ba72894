"""Reads and checks the metadata of a model's architecture.

A key is named without its prefix: `block_count` is `llama.block_count` in a file of llama. Knows no
architecture. Tested by tests/model/test_arch_hparams.py.
"""

from __future__ import annotations

import math
from typing import Final, NoReturn

from ..base.errors import ModelFileError
from .gguf import Array, GGUFFile

MAX_COUNT: Final = 2**31 - 1
# keys that change nothing in the texts of a decoder
UNUSED: Final = frozenset(
    {
        "vocab_size",  # the vocabulary has its size
        "tensor_data_layout",
        "attention.layer_norm_epsilon",  # files may have it beside that of the model's norm
        "attention.layer_norm_rms_epsilon",
        "use_parallel_residual",  # an architecture without this choice
        "attention.causal",
        "pooling_type",
        "rope.dimension_sections",  # positions of a text are equal in all sections
        "rope.scaling.finetuned",
        "n_deepstack_layers",
        "nextn_predict_layers",
        "attention.indexer.types",  # layers with an indexer have its tensors
        "attention.indexer.top_k_frequency",
        "attention.indexer.skip_top_k_offset",
    }
)
UNUSED_PARTS: Final = ("vision.", "audio.", "classifier.", "dense_")


class Keys:
    """The keys of a file's architecture, or those with another prefix.

    Every method raises ModelFileError if the key is missing and has no default, or if its value has
    the wrong type or is out of range. Defaults are not checked.
    """

    def __init__(self, file: GGUFFile, prefix: str = "") -> None:
        self.path = file.path
        self.file = file
        self.metadata = file.metadata
        self.arch = prefix or file.metadata.str("general.architecture")
        self._read: set[str] = set()

    def full(self, key: str) -> str:
        """Return a key with its prefix."""
        self._read.add(key)
        return f"{self.arch}.{key}"

    def unread(self) -> list[str]:
        """Return the architecture's keys in the file that nothing has read, in their order.

        Those of `UNUSED` are left out.
        """
        prefix = f"{self.arch}."
        found = [key.removeprefix(prefix) for key in self.metadata if key.startswith(prefix)]
        return [
            prefix + key
            for key in found
            if key not in self._read and key not in UNUSED and not key.startswith(UNUSED_PARTS)
        ]

    def __contains__(self, key: str) -> bool:
        return self.full(key) in self.metadata

    def fail(self, key: str, value: object, rule: str) -> NoReturn:
        """Raise ModelFileError with a key's value and the rule that it breaks."""
        raise ModelFileError(f"{self.path}: {self.full(key)} is {value}: {rule}")

    def is_array(self, key: str) -> bool:
        """True if the file has an array under this key."""
        return isinstance(self.metadata.get(self.full(key)), Array)

    # --- one value ---

    def count(
        self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_COUNT
    ) -> int:
        """Return an integer in low..high."""
        if default is not None and key not in self:
            return default
        value = self.metadata.int(self.full(key))
        if not low <= value <= high:
            self.fail(key, value, f"must be {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        if default is not None and key not in self:
            return default
        value = self.metadata.float(self.full(key))
        if not math.isfinite(value):
            self.fail(key, value, "must be finite")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0."""
        if default is not None and key not in self:
            return default
        value = self.metadata.float(self.full(key))
        if not (math.isfinite(value) and value > 0):
            self.fail(key, value, "must be above 0 and finite")
        return value

    def factor(self, key: str, default: float) -> float:
        """Return a finite number above 0. As in llama.cpp, 0 means that the key is not set."""
        return self.positive(key) if self.number(key, 0.0) else default

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        return self.metadata.bool(self.full(key)) if key in self else default

    def text(self, key: str, default: str) -> str:
        """Return a text."""
        return self.metadata.str(self.full(key), default)

    def texts(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Return an array of texts."""
        return tuple(self.metadata.strings(self.full(key))) if key in self else default

    # --- one value for each layer ---

    def per_layer(
        self, key: str, n_layer: int, default: tuple[int, ...] | None = None, *, low: int = 1
    ) -> tuple[int, ...]:
        """Return a count for each layer. The file has one number for all layers or an array."""
        # a default of zeros comes from a missing key, so it is no default
        if default is not None and all(default) and key not in self:
            return default
        if not self.is_array(key):
            return (self.count(key, low=low),) * n_layer
        values = tuple(self.metadata.ints(self.full(key)))
        self._require_all(key, len(values), n_layer)
        for il, value in enumerate(values[:n_layer]):
            if not low <= value <= MAX_COUNT:
                self.fail(f"{key}[{il}]", value, f"must be {low} to {MAX_COUNT}")
        return values[:n_layer]

    def numbers(self, key: str, n_layer: int, *, infinite: bool = False) -> tuple[float, ...]:
        """Return a number for each layer: a finite one, or with `infinite` any but NaN."""
        if not self.is_array(key):
            return (self.number(key),) * n_layer
        values = tuple(self.metadata.floats(self.full(key)).tolist())
        self._require_all(key, len(values), n_layer)
        allowed = math.isfinite if not infinite else lambda x: not math.isnan(x)
        for il, value in enumerate(values[:n_layer]):
            if not allowed(value):
                self.fail(f"{key}[{il}]", value, f"must be {'a number' if infinite else 'finite'}")
        return values[:n_layer]

    def flags(self, key: str, n_layer: int) -> tuple[bool, ...]:
        """Return true or false for each layer."""
        values = tuple(self.metadata.bools(self.full(key)))
        self._require_all(key, len(values), n_layer)
        return values[:n_layer]

    def _require_all(self, key: str, n: int, n_layer: int) -> None:
        if n < n_layer:
            self.fail(key, f"an array of {n}", f"must have one for {n_layer} layers")
