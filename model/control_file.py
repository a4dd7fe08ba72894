"""The file of a control vector: directions that are added to the outputs of layers.

    file = read_control_vector(path, scale=0.5)

A file has a vector `direction.N` for each layer N that it steers, as llama.cpp's cvector-generator
and repeng write it. Layers count from 0; the first one has no direction. Knows no model.
Tested by tests/model/test_control.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import ModelFileError
from ..graph import GGMLType
from .gguf import TensorInfo, open_gguf

F32Array = npt.NDArray[np.float32]

ARCH: Final = "controlvector"  # `general.architecture` of such a file
_NAME: Final = re.compile(r"direction\.([1-9]\d{0,5})")


@dataclass(frozen=True, slots=True)
class ControlFile:
    """What a control vector is, from the header of its file.

    Attributes:
        path: the file.
        scale: the factor of its directions.
        model: the architecture of the model that it was made for; "" if the file does not say.
        directions: its vectors, by layer.
    """

    path: Path
    scale: float
    model: str
    directions: Mapping[int, TensorInfo]

    def read(self) -> dict[int, F32Array]:
        """The values of its directions, without the scale.

        Raises:
            ModelFileError: the file cannot be read, or has a value that is not finite.
        """
        found = {}
        with open_gguf(self.path) as file:
            for layer, info in self.directions.items():
                known = file.tensors.get(info.name)
                if known is None or (known.ne, known.type) != (info.ne, info.type):
                    raise ModelFileError(f"{self.path}: the file was replaced while it was loaded")
                values = np.array(file.read(known).view(np.float32))
                if not np.isfinite(values).all():
                    raise ModelFileError(f"{self.path}: tensor {info.name}: a value is not finite")
                found[layer] = values
        return found


class ControlFiles(NamedTuple):
    """The control vectors of a model, which are added up.

    Attributes:
        files: the files.
        layers: the first and the last layer that they steer; None: all.
    """

    files: tuple[ControlFile, ...] = ()
    layers: tuple[int, int] | None = None


NO_CONTROL: Final = ControlFiles()


def read_control_vector(path: str | os.PathLike[str], scale: float = 1.0) -> ControlFile:
    """Read the header of a control vector's file.

    Raises:
        ModelFileError: the file is broken, or is no control vector.
    """
    with open_gguf(path, header_only=True) as file:
        directions: dict[int, TensorInfo] = {}
        for name, info in file.tensors.items():
            match = _NAME.fullmatch(name)
            if match is None:
                raise ModelFileError(
                    f"{file.path}: tensor {name}: a control vector has tensors direction.1, "
                    "direction.2 and so on only"
                )
            if info.type is not GGMLType.F32 or any(n != 1 for n in info.ne[1:]):
                raise ModelFileError(
                    f"{file.path}: tensor {name} is {info.type.name} {list(info.ne)}: must be a "
                    "vector of F32"
                )
            directions[int(match[1])] = info
        if not directions:
            raise ModelFileError(f"{file.path}: a control vector must have tensors direction.N")
        hint = file.metadata.str("controlvector.model_hint", "")
        return ControlFile(file.path, scale, hint, dict(sorted(directions.items())))
