"""The tensors of the GPU benchmark's cases, without memory, for the tests of the cases."""

from __future__ import annotations

from typing import Any

from gpu_cases import Ints, Tensors

from lamella.graph import GGMLType, Tensor


class Shapes(Tensors):
    """Makes the tensors of cases without data, except those with values."""

    def __init__(self) -> None:
        self.values: dict[Tensor, Ints] = {}
        self._kept: dict[Any, Tensor] = {}

    def tensor(self, type: GGMLType, *ne: int, key: Any, values: Ints | None = None) -> Tensor:
        t = self._kept.setdefault(key, Tensor(type, ne))
        assert t.type is type and t.ne == Tensor(type, ne).ne, f"two tensors are {key}"
        if values is not None:
            self.values[t] = values.reshape(t.ne[1::-1] if ne[1:] else -1)
        return t
