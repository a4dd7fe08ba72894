"""The control vectors of a model (arXiv 2308.10248): one direction for each steered layer.

    control = place_control(files, model.hp, layers, cpu)
    control.fill()    # once its tensors are allocated

A direction is added to the output of its layer. Those of several files are added up, as float32, in
the order of the files. Knows no graphs and no requests. Tested by tests/model/test_control.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..alloc.buffer import BufferType, buffer_of
from ..base.errors import ModelFileError, RequestError
from ..base.log import get_logger
from ..graph import GGMLType, Tensor, ops
from ..sched.backend import Device
from .control_file import NO_CONTROL, ControlFiles
from .hparams import HParams

log = get_logger("loader")


class Control:
    """The control vectors of a loaded model.

    Attributes:
        directions: F32 [n_embd] of each steered layer.
        tensors: all of them, by their memory.
    """

    def __init__(self, files: ControlFiles = NO_CONTROL) -> None:
        self.directions: dict[int, Tensor] = {}
        self.tensors: dict[BufferType, list[Tensor]] = {}
        self._files = files.files

    def fill(self) -> None:
        """Copy the directions from the files.

        Raises:
            ModelFileError: a file cannot be read, or has a value that is not finite.
        """
        sums = {il: np.zeros(t.ne[0], np.float32) for il, t in self.directions.items()}
        for file in self._files:
            for il, values in file.read().items():
                if il in sums:
                    with np.errstate(over="ignore"):  # absurd scales may become infinite
                        sums[il] += np.float32(file.scale) * values
        for il, tensor in self.directions.items():
            buffer_of(tensor).set_tensor(tensor, sums[il].view(np.uint8))


def place_control(
    files: ControlFiles, hp: HParams, layers: Sequence[Device], cpu: Device
) -> Control:
    """Make the tensors of control vectors. These are not allocated yet.

    Args:
        files: the files, and the layers to steer.
        hp: the model's shape.
        layers: the device of each layer. Its direction goes there, if the device can add it.
        cpu: adds the others.

    Raises:
        ModelFileError: a direction is for a layer that the model does not have, or has another
            size than the model's rows.
        RequestError: the range of layers is not in the model, or has no direction.
    """
    _check_range(files, hp)
    control = Control(files)
    first, last = files.layers or (1, hp.n_layer - 1)
    for file in files.files:
        if file.model and file.model != hp.arch:
            log.warning(
                f"{file.path}: the control vector was made for {file.model}, the model is {hp.arch}"
            )
        for il, info in file.directions.items():
            if il >= hp.n_layer:
                raise ModelFileError(
                    f"{file.path}: tensor {info.name}: the model has layers 1 to {hp.n_layer - 1}"
                )
            if info.ne[0] != hp.n_embd:
                raise ModelFileError(
                    f"{file.path}: tensor {info.name} has [{info.ne[0]}], must have [{hp.n_embd}]"
                )
            if first <= il <= last and il not in control.directions:
                tensor = Tensor(GGMLType.F32, (hp.n_embd,), name=f"direction.{il}")
                control.directions[il] = tensor
                home = layers[il] if _can_add(layers[il], tensor) else cpu
                control.tensors.setdefault(home.buffer_type, []).append(tensor)
    if files.files and not control.directions:
        raise RequestError(
            f"control_vector_layer_range is {first} to {last}: no control vector has a direction "
            "for these layers"
        )
    return control


def _check_range(files: ControlFiles, hp: HParams) -> None:
    if files.layers is None:
        return
    first, last = files.layers
    if not 1 <= first <= last < hp.n_layer:
        raise RequestError(
            f"control_vector_layer_range is {first} to {last}: must be two layers of 1 to "
            f"{hp.n_layer - 1}"
        )


def _can_add(device: Device, direction: Tensor) -> bool:
    """True if a device can add a direction in its own memory."""
    direction.buffer = device.buffer_type.alloc_buffer(0)  # support can depend on the memory
    try:
        return device.supports_op(ops.add(Tensor(GGMLType.F32, (direction.ne[0], 1)), direction))
    finally:
        direction.buffer = None
