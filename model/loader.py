"""Model loading: place the weights of a file, allocate them, copy their data.

    model = load_model(path, Placement(cpu=cpu, devices=(gpu,)))

Knows no graphs and no contexts. Tested by tests/model/test_loader_*.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from weakref import WeakSet

import numpy as np

from ..alloc import Buffer, Usage, alloc_tensors, buffer_of
from ..alloc.buffer import BufferType, Bytes
from ..alloc.host import DTYPES
from ..alloc.memory import REAL_MEMORY, Memory
from ..base.errors import ModelFileError, OutOfMemoryError
from ..base.log import get_logger
from ..graph import GGMLType, Tensor
from ..graph.op import WRITTEN_SOURCES
from ..kernels.reference.arrays import to_f32
from ..sched.backend import Device
from .adapter_file import AdapterFile
from .adapters import Adapters, place_adapters
from .arch import Architecture, WeightSpec, open_architecture, open_block
from .control import Control, place_control
from .control_file import NO_CONTROL, ControlFiles
from .file_weights import FoundWeight, find_weights
from .gguf import GGUFFile, Metadata, Scalar, TensorInfo, open_gguf
from .placement import Home, Placement, input_device, layer_devices, place

log = get_logger("loader")

N_PROGRESS: Final = 100  # approximate number of calls of the progress callback


class LoadedModel:
    """A model whose weights are in memory. Made by `load_model`.

    Attributes:
        path: the model's file; the first one of a split model.
        n_bytes: the size of all files.
        stamps: of all files, as they were loaded.
        metadata: the file's metadata; readable after the file is closed.
        arch: the architecture, which builds graphs.
        hp: its hyperparameters.
        specs: the architecture's weights by name, also those that the file does not have.
        weights: the architecture's weights by name, in buffers of usage WEIGHTS.
        origins: for each weight, its place in the file (`FoundWeight.origin`). Tied weights have
            the same one, even if they are in different kinds of memory.
        homes: the home of each weight, by name.
        placement: the rules by which the model was placed.
        memory: allocates the buffers of the model and its contexts.
        layers: the device of each layer, then that of the output.
        input: the device of the embeddings.
        adapters: the LoRA adapters that were loaded with it.
        control: the control vectors that were loaded with it.
        shared: the names of weights that are in the memory of another model, see `share_weights`.
        copied: for each other weight that this model has too, why it was loaded again.
        devices: the devices in use, in the order of `Placement.devices`; the CPU is always last.
    """

    def __init__(
        self,
        file: GGUFFile,
        arch: Architecture,
        homes: Mapping[str, Home],
        placement: Placement,
        memory: Memory,
    ) -> None:
        self.path = file.path
        self.n_bytes = file.n_bytes
        self.stamps = file.stamps
        self.metadata: Metadata = file.metadata
        self.arch = arch
        self.hp = arch.hp
        self.specs: dict[str, WeightSpec] = {}
        self.homes = dict(homes)
        self.weights: dict[str, Tensor] = {}
        self.origins: dict[str, str] = {}
        self.placement = placement
        self.memory = memory
        self.adapters = Adapters()
        self.control = Control()
        self.shared: frozenset[str] = frozenset()
        self.copied: dict[str, str] = {}
        self.layers = layer_devices(self.hp.n_layer, placement)
        self.input = input_device(self.layers, placement)
        used = {home.device for home in homes.values()}.union(self.layers)
        # also devices that only compute large batches: the CPU's weights are in their pinned memory
        bufts = {home.buft for home in homes.values()}
        used.update(d for d in placement.devices if d.host_buffer_type in bufts)
        self.devices = (*(d for d in placement.devices if d in used), placement.cpu)
        self._buffers: list[Buffer] = []
        self._borrowers: WeakSet[LoadedModel] = WeakSet()  # models that use its weights
        self._lender: LoadedModel | None = None

    def kv_home(self, il: int) -> Device:
        """Return the device that holds the keys and values of layer `il`.

        This is the device of the layer, or the CPU without `kv_offload`.
        """
        return self.layers[il] if self.placement.params.kv_offload else self.placement.cpu

    def state_home(self, il: int) -> Device:
        """Return the device that holds the states of layer `il`: the one that computes them.

        This is the device of keys and values, or the CPU if that one cannot read all weights of
        the layer's recurrences.
        """
        device = self.kv_home(il)
        readers = (s for s in self.specs.values() if s.layer == il and s.op in WRITTEN_SOURCES)
        here = all(self.homes[spec.name].device is device for spec in readers)
        return device if here else self.placement.cpu

    @property
    def buffers(self) -> Sequence[Buffer]:
        """The buffers of the weights, adapters and control vectors."""
        return tuple(self._buffers)

    def free(self) -> None:
        """Free the weights' memory. May be called again. Models that use it must be free before."""
        assert not self._borrowers, f"{self.path}: a block still uses the weights"
        if self._lender is not None:
            self._lender._borrowers.discard(self)
        self._free_buffers()

    def _free_buffers(self) -> None:
        for buffer in self._buffers:
            buffer.free()
        self._buffers = []

    def _borrow(self, lender: LoadedModel, weights: SharedWeights) -> None:
        """Use weights of another model, which must live longer."""
        self.shared, self.copied = frozenset(weights.homes), weights.copied
        self._lender = lender
        lender._borrowers.add(self)

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


def load_model(
    path: str | os.PathLike[str],
    placement: Placement,
    progress: Callable[[int, int], None] | None = None,
    *,
    overrides: Mapping[str, Scalar] | None = None,
    check_tensors: bool = False,
    adapters: Sequence[AdapterFile] = (),
    control: ControlFiles = NO_CONTROL,
    block_of: LoadedModel | None = None,
) -> LoadedModel:
    """Load a model and place its weights by the rules of `placement`.

    `progress` is called before the first copy and about 100 times more, with the bytes copied so
    far and the total. `overrides` replace metadata: see `open_gguf`. `check_tensors`: check first
    that all weights are finite. `adapters` are LoRA adapters for sequences to use, `control`
    control vectors for all of them. `block_of`: load the file's block that guesses for this loaded
    model, see `open_block`. It uses the model's weights where it can, see `share_weights`.

    Raises:
        ModelFileError: the file is missing or broken, or a tensor is missing or has a shape that
            does not match the hyperparameters.
        UnsupportedModelError: an architecture, a tensor or a type that Lamella cannot run.
        RequestError: an override puts a weight into memory that no device can compute with, or the
            range of control vectors is invalid.
        OutOfMemoryError: a device's memory is too small; all memory is freed.
    """
    with open_gguf(path, overrides=overrides) as file:
        if check_tensors:
            _check_finite(file)
        model, sources = place_model(
            file, placement, adapters=adapters, control=control, block_of=block_of
        )
        try:
            _fill(file, sources, model, progress)
            model.adapters.fill()
            model.control.fill()
        except BaseException:
            model.free()
            raise
        return model


def place_model(
    file: GGUFFile,
    placement: Placement,
    memory: Memory = REAL_MEMORY,
    adapters: Sequence[AdapterFile] = (),
    control: ControlFiles = NO_CONTROL,
    block_of: LoadedModel | None = None,
) -> tuple[LoadedModel, dict[Tensor, FoundWeight]]:
    """Place and allocate the model of an open file, or its block, without copying data.

    Returns:
        The model, and the source of each weight to copy from the file.
    """
    arch = open_architecture(file) if block_of is None else open_block(file)
    specs = arch.weights()
    found = find_weights(file, specs, arch.ignores)
    homes = place(file.path, arch.hp, {w.spec: w.type for w in found}, placement)
    shared = SharedWeights({}, {})
    if block_of is not None:
        if block_of.stamps != file.stamps:
            raise ModelFileError(f"{file.path}: the file was replaced after its model was loaded")
        shared = share_weights(block_of, found, homes, placement)
    model = LoadedModel(file, arch, {**homes, **shared.homes}, placement, memory)
    model.specs = {spec.name: spec for spec in specs}
    if block_of is not None:
        model._borrow(block_of, shared)
    try:
        sources = _allocate(model, found, placement)
        _allocate_adapters(model, found, adapters)
        model.control = place_control(control, model.hp, model.layers, placement.cpu)
        _allocate_all(model, model.control.tensors)
        return model, sources
    except BaseException:
        model.free()
        raise


# --- weights in common ---


class SharedWeights(NamedTuple):
    """The weights that two models of a file have in common. `homes`: of those in memory once, by
    name. `copied`: why each of the others is loaded again."""

    homes: dict[str, Home]
    copied: dict[str, str]


def share_weights(
    model: LoadedModel,
    found: Iterable[FoundWeight],
    homes: Mapping[str, Home],
    placement: Placement,
) -> SharedWeights:
    """Find the weights of a block that are those of its loaded model.

    The block uses them where they are, if it may use that device and no override of its own puts
    them elsewhere. Only the block's layer is where its other options place it.

    Args:
        model: the model.
        found: the block's weights.
        homes: where `placement`, the block's, puts them.
    """
    shared = SharedWeights({}, {})
    devices = (*placement.devices, placement.cpu)
    for weight in found:
        name = weight.spec.name
        theirs = model.weights.get(name)
        if model.origins.get(name) != weight.origin or theirs is None:
            continue  # the block has its own
        home, own = model.homes[name], homes[name]
        assert (theirs.type, theirs.ne[:2]) == (weight.type, weight.spec.ne), f"{theirs!r}"
        if placement.override(name) is not None and home != own:
            shared.copied[name] = (
                f"the model's is in {home.buft.name}, an override says {own.buft.name}"
            )
        elif home.device not in devices:
            shared.copied[name] = (
                f"the model's is on {home.device.name}, none of the block's devices"
            )
        else:
            shared.homes[name] = home
    return shared


# --- memory ---


def _allocate(
    model: LoadedModel, found: list[FoundWeight], placement: Placement
) -> dict[Tensor, FoundWeight]:
    """Allocate the model's own weights. Tied ones are allocated once in each kind of memory.

    If pinned memory is too small, its weights go to the CPU's own memory.
    """
    sources: dict[Tensor, FoundWeight] = {}
    shared: dict[tuple[BufferType, str], Tensor] = {}
    by_buft: dict[BufferType, list[Tensor]] = {}
    for weight in found:
        name, buft = weight.spec.name, model.homes[weight.spec.name].buft
        model.origins[name] = weight.origin
        if name in model.shared:
            assert model._lender is not None, "another model shares its weights"
            model.weights[name] = model._lender.weights[name]
            continue
        key = (buft, weight.origin)
        if key not in shared:
            shared[key] = Tensor(weight.type, weight.spec.ne, name=name)
            sources[shared[key]] = weight
            by_buft.setdefault(buft, []).append(shared[key])
        model.weights[name] = shared[key]
    for buft, tensors in by_buft.items():
        try:
            model._buffers += alloc_tensors(tensors, buft, Usage.WEIGHTS, model.memory)
        except OutOfMemoryError as e:
            if buft not in placement.pinned:
                raise
            log.warning(f"{e}: the CPU's weights are in pageable memory, copies are slower")
            model._free_buffers()
            for name, home in model.homes.items():
                if home.buft is buft and name not in model.shared:
                    model.homes[name] = Home(placement.cpu, placement.cpu.buffer_type)
            return _allocate(model, found, placement)
    return sources


def _allocate_adapters(
    model: LoadedModel, found: Iterable[FoundWeight], files: Sequence[AdapterFile]
) -> None:
    """Allocate the matrices of LoRA adapters."""
    weights = [(weight.spec, weight.source) for weight in found]
    device_of = {name: home.device for name, home in model.homes.items()}
    arch, cpu = model.hp.arch, model.placement.cpu
    model.adapters = place_adapters(files, arch, weights, device_of, cpu)
    _allocate_all(model, model.adapters.tensors)


def _allocate_all(model: LoadedModel, found: Mapping[BufferType, list[Tensor]]) -> None:
    for buft, tensors in found.items():
        model._buffers += alloc_tensors(tensors, buft, Usage.WEIGHTS, model.memory)


# --- data ---


class _Progress:
    """Counts bytes and calls the callback at each percent."""

    def __init__(self, callback: Callable[[int, int], None] | None, total: int) -> None:
        self._callback = callback
        self._total = total
        self._done = 0
        self._reported = 0

    def add(self, n_bytes: int) -> None:
        self._done += n_bytes
        part = self._done * N_PROGRESS // max(self._total, 1)
        if self._callback is not None and part > self._reported:
            self._reported = part
            self._callback(self._done, self._total)


def _fill(
    file: GGUFFile,
    sources: Mapping[Tensor, FoundWeight],
    model: LoadedModel,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Copy the weights in the order of the file, so that a disk reads on."""
    placement = model.placement
    devices = (*placement.devices, placement.cpu)
    plain = {device.buffer_type for device in devices} | placement.pinned
    total = sum(info.nbytes for weight in sources.values() for info in weight.parts)
    if progress is not None:
        progress(0, total)
    done = _Progress(progress, total)

    def place_in_file(item: tuple[Tensor, FoundWeight]) -> tuple[int, int]:
        first = item[1].parts[0]
        return first.shard, first.offset

    for tensor, weight in sorted(sources.items(), key=place_in_file):
        parts = file.places(weight.parts)
        if parts and buffer_of(tensor).load_tensor(tensor, parts, weight.parts[0].type):
            done.add(sum(part.n_bytes for part in parts))  # read by the device's own machine
        elif weight.is_converted or model.homes[weight.spec.name].buft not in plain:
            # special buffer types may repack a tensor: they read what they need at once
            _copy_whole(file, tensor, weight, done)
        else:
            _copy_slices(file, tensor, weight, done)


def _copy_whole(file: GGUFFile, tensor: Tensor, weight: FoundWeight, done: _Progress) -> None:
    size = sum(info.nbytes for info in weight.parts)

    def read(begin: int, end: int) -> Bytes:
        return _read(file, weight.parts, begin, end)

    if weight.is_converted:
        buffer_of(tensor).set_tensor(tensor, _as_f32(weight.parts[0].type, read(0, size)))
    else:
        buffer_of(tensor).fill_tensor(tensor, read)
    done.add(size)


def _read(file: GGUFFile, parts: Iterable[TensorInfo], begin: int, end: int) -> Bytes:
    """Return the bytes from `begin` to `end` of consecutive parts."""
    found, first = [], 0
    for info in parts:
        if first < end and first + info.nbytes > begin:
            found.append(file.read(info, max(begin - first, 0), min(end - first, info.nbytes)))
        first += info.nbytes
    return found[0] if len(found) == 1 else np.concatenate(found)


def _copy_slices(file: GGUFFile, tensor: Tensor, weight: FoundWeight, done: _Progress) -> None:
    buffer, offset = buffer_of(tensor), 0
    for info in weight.parts:
        for part in file.slices(info):
            buffer.set_tensor(tensor, part, offset)
            offset += part.size
            done.add(part.size)


def _check_finite(file: GGUFFile) -> None:
    """Raise ModelFileError if a weight is infinite or NaN."""
    for info in file.tensors.values():
        n_bad = 0
        for part in file.slices(info):
            values = _as_f32(info.type, part).view(np.float32)
            n_bad += int(np.count_nonzero(~np.isfinite(values)))
        if n_bad:
            raise ModelFileError(f"{file.path}: tensor {info.name}: {n_bad} values are not finite")


def _as_f32(type: GGMLType, data: Bytes) -> Bytes:
    return to_f32(type, data.view(DTYPES.get(type, np.uint8))).view(np.uint8)
