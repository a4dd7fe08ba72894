"""The file of a LoRA adapter: pairs of matrices for tensors of a model's file.

    adapter = read_adapter(path, scale=1.0)

A file has NAME.lora_a [n_in, rank] and NAME.lora_b [rank, n_out] for each tensor NAME that it
changes. The formats of files and their keys are those of llama.cpp (convert_lora_to_gguf.py). Knows
no model. Tested by tests/model/test_adapter_file.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..alloc.host import DTYPES
from ..base.errors import ModelFileError, UnsupportedModelError
from ..graph import GGMLType
from ..kernels.reference.arrays import can_dequantize, to_f32
from .gguf import GGUFFile, TensorInfo, open_gguf

F32Array = npt.NDArray[np.float32]

N_SHOWN: Final = 8  # most tensors named in one message


class Pair(NamedTuple):
    """The matrices of an adapter for one tensor, [n_in, rank] and [rank, n_out].

    Those of the embedding are [rank, n_vocab] and [rank, n_embd]: A has a row for each token.
    """

    a: TensorInfo
    b: TensorInfo

    @property
    def rank(self) -> int:
        return matrix_of(self.b)[0]


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """What an adapter is, from the header of its file.

    Attributes:
        path: the file.
        scale: the scale of sequences that set none.
        name: `general.name`.
        arch: the architecture of its model.
        alpha: its products are multiplied by alpha / rank; 0: by 1.
        task_name, prompt_prefix: what the file says about its use.
        pairs: its matrices, by the name of the tensor that they change.
    """

    path: Path
    scale: float
    name: str
    arch: str
    alpha: float
    task_name: str
    prompt_prefix: str
    pairs: Mapping[str, Pair]

    @property
    def ranks(self) -> list[int]:
        """The distinct ranks of its matrices, ascending."""
        return sorted({pair.rank for pair in self.pairs.values()})

    @property
    def n_bytes(self) -> int:
        """The bytes of its matrices in the file."""
        return sum(info.nbytes for pair in self.pairs.values() for info in pair)

    def factor(self, pair: Pair) -> float:
        """The factor of the products of a pair."""
        return self.alpha / pair.rank if self.alpha else 1.0


def read_adapter(path: str | os.PathLike[str], scale: float = 1.0) -> AdapterFile:
    """Read the header of an adapter's file.

    Raises:
        ModelFileError: the file is broken, is no LoRA adapter, or lacks a matrix of a pair.
        UnsupportedModelError: an activated adapter, or a tensor that is no part of a pair.
    """
    with open_gguf(path, header_only=True) as file:
        return describe_adapter(file, scale)


def describe_adapter(file: GGUFFile, scale: float = 1.0) -> AdapterFile:
    """Describe an open adapter. Raises as `read_adapter`."""
    data, path = file.metadata, file.path
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        found = data.str(key, "")
        if found != wanted:
            value = f"is {found!r}" if found else "is missing"
            raise ModelFileError(f"{path}: {key} {value}: must be {wanted!r} in a LoRA adapter")
    if "adapter.alora.invocation_tokens" in data:
        raise UnsupportedModelError(
            f"{path}: an activated LoRA adapter (adapter.alora.invocation_tokens), which begins at "
            "these tokens, is not supported yet"
        )
    alpha = data.float("adapter.lora.alpha", 0.0)
    if not math.isfinite(alpha):
        raise ModelFileError(f"{path}: adapter.lora.alpha is {alpha}: must be finite")
    return AdapterFile(
        path=path,
        scale=scale,
        name=data.str("general.name", ""),
        arch=data.str("general.architecture"),
        alpha=alpha,
        task_name=data.str("adapter.lora.task_name", ""),
        prompt_prefix=data.str("adapter.lora.prompt_prefix", ""),
        pairs=_pairs(file),
    )


def _pairs(file: GGUFFile) -> Mapping[str, Pair]:
    """Return the pairs of a file, by the tensor that they change."""
    kinds: dict[str, dict[str, TensorInfo]] = {}
    for name, info in file.tensors.items():
        base, _, kind = name.rpartition(".")
        if kind not in ("lora_a", "lora_b"):
            raise UnsupportedModelError(
                f"{file.path}: tensor {name}: an adapter has tensors NAME.lora_a and NAME.lora_b "
                "only; results without this one would be wrong"
            )
        if info.type is not GGMLType.F32 and not can_dequantize(info.type):
            raise UnsupportedModelError(
                f"{file.path}: tensor {name} of type {info.type.name} cannot be read as F32"
            )
        kinds.setdefault(base, {})[kind] = info
    found: dict[str, Pair] = {}
    for base, pair in kinds.items():
        for kind in ("lora_a", "lora_b"):
            if kind not in pair:
                raise ModelFileError(f"{file.path}: tensor {base}.{kind} is missing")
        found[base] = Pair(pair["lora_a"], pair["lora_b"])
    if not found:
        raise ModelFileError(f"{file.path}: the adapter has no tensors")
    return found


# --- matrices ---


def matrix_of(info: TensorInfo) -> tuple[int, ...]:
    """The shape of a tensor without ones after the second dimension, which files may omit."""
    ne = (*info.ne, 1) if len(info.ne) == 1 else info.ne
    while len(ne) > 2 and ne[-1] == 1:
        ne = ne[:-1]
    return ne


def read_matrix(file: GGUFFile, info: TensorInfo) -> F32Array:
    """The values of a matrix, with its rows first."""
    known = file.tensors.get(info.name)
    if known is None or (known.ne, known.type) != (info.ne, info.type):
        raise ModelFileError(f"{file.path}: the file was replaced while it was loaded")
    data = file.read(known).view(DTYPES.get(info.type, np.uint8))
    n, rows = matrix_of(info)
    values = to_f32(info.type, data.reshape(rows, -1)).reshape(rows, n)
    if not np.isfinite(values).all():
        raise ModelFileError(f"{file.path}: tensor {info.name}: a value is not finite")
    return values
