"""Specifications of an architecture's weights: name, shape, layer, and the op that reads them.

Names are GGUF's. An architecture declares a weight where its graph uses it (build.py). Knows no
files and no devices. Tested by tests/model/test_arch_weights.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

from ...graph import GGMLType, Op, Tensor


class Bias(Enum):
    """Presence of a matrix's bias in a file."""

    NONE = auto()
    OPTIONAL = auto()
    REQUIRED = auto()


class Part(NamedTuple):
    """Rows of a tensor in a file: all of them, or `n` rows from `begin` on, of `n_rows`.

    Files may have several matrices with the same columns in one tensor. Rows are those of the
    second dimension; vectors have elements in their place.
    """

    tensor: str
    begin: int = 0
    n: int | None = None
    n_rows: int | None = None


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight.

    Attributes:
        name: the name in `LoadedModel.weights`.
        ne: shape.
        layer: the layer; None for the input embedding, n_layer for the output.
        op: the op that reads the weight. A device must support it to hold the weight.
        files: alternative sources in a file, in order of preference. Each is a list of parts,
            concatenated to make the weight.
        required: the file must have the weight.
        adapts: LoRA adapters may change it.
    """

    name: str
    ne: tuple[int, ...]
    layer: int | None
    op: Op
    files: tuple[tuple[Part, ...], ...]
    required: bool = True
    adapts: bool = False


class Weights(Protocol):
    """The source of a graph's weights."""

    def find(self, spec: WeightSpec) -> Tensor | None:
        """Return the weight of a specification; None if it is optional and absent."""


class DeclaredWeights:
    """Records the weights that a graph declares, and stands in for them. All are present."""

    def __init__(self) -> None:
        self.specs: dict[str, WeightSpec] = {}

    def find(self, spec: WeightSpec) -> Tensor:
        """Record a specification, and return a tensor of its shape."""
        known = self.specs.setdefault(spec.name, spec)
        assert known == spec, f"{spec.name} is declared twice: {known}, {spec}"
        return Tensor(GGMLType.F32, spec.ne, name=spec.name)


class LoadedWeights:
    """The weights of a model, by name."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def find(self, spec: WeightSpec) -> Tensor | None:
        """Return a weight."""
        found = self._tensors.get(spec.name)
        assert found is not None or not spec.required, f"{spec.name} was not loaded"
        return found
