"""The weights of an architecture in a model's file: their tensors, shapes and types.

Reads no data. Knows no devices. Tested by tests/model/test_loader_weights.py and
test_loader_errors.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ..base.errors import ModelFileError, UnsupportedModelError
from ..graph import GGMLType
from ..kernels.reference.arrays import can_dequantize
from .arch import Part, WeightSpec
from .gguf import GGUFFile, TensorInfo

N_NAMED: Final = 50  # most tensors named in one message


@dataclass(frozen=True, slots=True)
class FoundWeight:
    """A weight and its source: consecutive tensors of the file, or rows of them.

    `type` is the type of the loaded weight. Vectors are loaded as float32.
    """

    spec: WeightSpec
    type: GGMLType
    parts: tuple[TensorInfo, ...]
    source: tuple[Part, ...]

    @property
    def origin(self) -> str:
        """The name of the source: its first tensor, and the first row if it is not row 0."""
        first = self.source[0]
        return f"{first.tensor}[{first.begin}]" if first.begin else first.tensor

    @property
    def is_converted(self) -> bool:
        return self.type is not self.parts[0].type


def find_weights(
    file: GGUFFile, specs: Iterable[WeightSpec], ignores: Callable[[str], bool]
) -> list[FoundWeight]:
    """Return the file's weights for `specs`. Optional ones may be absent.

    `ignores` returns True for tensors that are not used.

    Raises:
        ModelFileError: weights are missing or have a wrong shape; names them.
        UnsupportedModelError: a vector has a type that cannot be read as float32, or the file has
            tensors that are not in `specs`. Results without these tensors would be wrong.
    """
    found: list[FoundWeight] = []
    missing: list[str] = []
    misshaped: list[str] = []
    for spec in specs:
        source = _source(file, spec)
        if source:
            wrong = _misshaped(file, spec, source)
            misshaped += wrong
            if not wrong:
                parts = tuple(info for part in source for info in _infos(file, part))
                _check_types(file.path, parts)
                type = _loaded_type(file.path, spec, parts)
                found.append(FoundWeight(spec, type, parts, source))
        elif spec.required:
            missing.append(spec.files[0][0].tensor)
    if missing:
        raise ModelFileError(f"{file.path}: tensors are missing: {_list(missing)}")
    if misshaped:
        raise ModelFileError(f"{file.path}: tensors have wrong shapes: {_list(misshaped)}")
    used = {info.name for weight in found for info in weight.parts}
    unknown = [name for name in file.tensors if name not in used and not ignores(name)]
    if unknown:
        arch = file.metadata.str("general.architecture")
        raise UnsupportedModelError(
            f"{file.path}: architecture {arch!r} does not have these tensors, and would ignore "
            f"them: {_list(unknown)}"
        )
    return found


def _source(file: GGUFFile, spec: WeightSpec) -> tuple[Part, ...]:
    """Return the parts that make a weight, () if the file has none.

    They are the first option whose tensors have the right shapes. If no option has them, they are
    the preferred option, so that the error names its tensors.
    """
    options = [ps for ps in spec.files if all(part.tensor in file.tensors for part in ps)]
    fitting = next((ps for ps in options if not _misshaped(file, spec, ps)), None)
    if fitting is None:  # other options may be tensors with another meaning
        return options[0] if options and options[0] is spec.files[0] else ()
    return fitting


def _misshaped(file: GGUFFile, spec: WeightSpec, parts: tuple[Part, ...]) -> list[str]:
    """Return a text for each tensor with a wrong shape: its shape and the required one."""
    ne = spec.ne if len(parts) == 1 else spec.ne[:-1]
    wrong = []
    for part in parts:
        info, wanted = file.tensors[part.tensor], ne
        if part.n_rows is not None:
            rows = _rows_dim(ne)
            wanted = (*ne[:rows], part.n_rows, *ne[rows + 1 :])
        if [n for n in info.ne if n > 1] != [n for n in wanted if n > 1]:  # files may omit ones
            wrong.append(f"{info.name} has {list(info.ne)}, must have {list(wanted)}")
    return wrong


def _infos(file: GGUFFile, part: Part) -> Iterator[TensorInfo]:
    """Yield the pieces of a file that make a part, in order.

    The rows of a matrix are one piece. Of experts, each has its own.
    """
    info = file.tensors[part.tensor]
    if part.n is None or part.n_rows is None:
        yield info
        return
    rows = _rows_dim(info.ne)
    step = info.nbytes // math.prod(info.ne[rows + 1 :])  # bytes of a matrix
    for i in range(info.nbytes // step):
        yield replace(
            info,
            ne=(*info.ne[:rows], part.n),
            offset=info.offset + i * step + part.begin * step // part.n_rows,
            nbytes=part.n * step // part.n_rows,
        )


def _rows_dim(ne: tuple[int, ...]) -> int:
    """The dimension of rows: the second one, or of a vector the only one."""
    return min(1, len(ne) - 1)


def _check_types(path: Path, parts: tuple[TensorInfo, ...]) -> None:
    for info in parts:
        if info.type is not parts[0].type:
            raise UnsupportedModelError(
                f"{path}: tensor {info.name} has type {info.type.name}, {parts[0].name} has "
                f"{parts[0].type.name}: the experts of a layer must have one type"
            )


def _loaded_type(path: Path, spec: WeightSpec, parts: tuple[TensorInfo, ...]) -> GGMLType:
    type = parts[0].type
    if len(spec.ne) > 1:
        return type
    if type is not GGMLType.F32 and not can_dequantize(type):
        raise UnsupportedModelError(
            f"{path}: tensor {parts[0].name} of type {type.name} cannot be read as F32"
        )
    return GGMLType.F32


def _list(names: list[str]) -> str:
    names = list(dict.fromkeys(names))  # a tensor of the file may be several weights
    more = f" and {len(names) - N_NAMED} more" if len(names) > N_NAMED else ""
    return ", ".join(names[:N_NAMED]) + more
