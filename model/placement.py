"""Placement of weights: a device and a buffer type for each weight, by llama.cpp's rules.

The last n_gpu_layers of the n_layer + 1 layers (the output counts as one) go to the devices, in
order. The input embedding stays on the CPU, or goes to the first layer's device. A weight goes to
the CPU if its device cannot run its op. Overrides take precedence. An override to the CPU's buffer
type selects the CPU, and its best buffer type for the weight. Nothing is allocated, so placement
works before a model is loaded.
Tested by tests/model/test_loader_placement.py.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Final, NamedTuple

from ..alloc.buffer import BufferType
from ..base.errors import RequestError, UnsupportedModelError
from ..graph import GGMLType, Op, Tensor, ops
from ..graph.ops.check import is_matrix_type
from ..sched.backend import Device, DeviceType
from .arch.weights import WeightSpec
from .hparams import HParams
from .params import PlacementParams

N_TOKENS_TRIED: Final = 512  # tokens of the op passed to `supports_op`, as in llama.cpp
# the experts of a layer, without its router and its shared experts (llama.cpp, common/common.h,
# LLM_FFN_EXPS_REGEX)
EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"

Overrides = tuple[tuple[str, BufferType], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The devices for a model, and the rules of placement.

    Args:
        cpu: runs everything that the other devices do not.
        devices: GPUs and accelerators, in the order in which layers fill them.
        params: the number of layers for the devices, their shares, and so on. Its names of devices
            and overrides are not read: `devices` and `overrides` replace them.
        overrides: pairs of a pattern (`re.search` on a weight's name) and the buffer type of the
            weights that match. The first match counts.
        memory: the (free, total) bytes of each device, by its name. Read once, when the first
            placement is made; `replace` keeps it, so all plans and the load use the same numbers.

    Raises:
        RequestError: an invalid device, share or pattern, or a buffer type that no device can use.
    """

    cpu: Device
    devices: tuple[Device, ...] = ()
    params: PlacementParams = field(default_factory=PlacementParams)
    overrides: Overrides = ()
    memory: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not self.memory:
            memory = {device.name: device.memory() for device in (*self.devices, self.cpu)}
            object.__setattr__(self, "memory", memory)
        self._check_devices()
        self._check_split()
        for pattern, buft in self.overrides:
            try:
                re.compile(pattern)
            except re.error as e:
                raise RequestError(
                    f"override {pattern!r} is not a regular expression: {e}"
                ) from None
            if not self.users(buft):
                names = ", ".join(d.name for d in (*self.devices, self.cpu))
                raise RequestError(
                    f"override {pattern!r}: no device can use {buft.name}; the devices are: {names}"
                )

    def users(self, buft: BufferType) -> list[Device]:
        """Return the devices that can use buffers of this type."""
        return [d for d in (*self.devices, self.cpu) if d.supports_buft(buft)]

    def override(self, name: str) -> BufferType | None:
        """Return the buffer type of the first override that matches a weight's name, or None."""
        return next((buft for pattern, buft in self.overrides if re.search(pattern, name)), None)

    @property
    def pinned(self) -> set[BufferType]:
        """The devices' pinned host buffer types, from which copies are fast.

        Pinned memory may be scarce; the CPU's own buffer type can replace it.
        """
        kinds = {device.host_buffer_type for device in self.devices}
        return {buft for buft in kinds if buft is not None}

    def _check_devices(self) -> None:
        if self.cpu.type is not DeviceType.CPU:
            raise RequestError(f"cpu is {self.cpu.name}, a {self.cpu.type.value}: must be a CPU")
        for i, device in enumerate(self.devices):
            if device.type is DeviceType.CPU:
                raise RequestError(f"devices: {device.name} is a CPU, which is always included")
            if device in self.devices[:i]:
                raise RequestError(f"devices: {device.name} is listed twice")

    def _check_split(self) -> None:
        split = self.params.tensor_split or ()
        if len(split) > max(len(self.devices), 1):
            raise RequestError(
                f"tensor_split has {len(split)} shares for {len(self.devices)} devices"
            )
        for share in split:
            if not (math.isfinite(share) and share >= 0):
                raise RequestError(f"tensor_split: share {share} must be finite and at least 0")


class Home(NamedTuple):
    """The place of a weight: a device that computes with it, and a buffer type."""

    device: Device
    buft: BufferType


def moe_overrides(n_layer: int, n: int, buft: BufferType) -> Overrides:
    """Return the override that keeps the experts of the first `n` layers in `buft`.

    If `n` is below 0 or at least `n_layer`, it applies to all layers (llama.cpp's --n-cpu-moe and
    --cpu-moe).
    """
    if n < 0 or n >= n_layer:
        return ((EXPERTS, buft),)
    layers = "|".join(map(str, range(n)))
    return ((rf"blk\.({layers}){EXPERTS}", buft),) if n else ()


def layer_devices(n_layer: int, placement: Placement) -> list[Device]:
    """Return the device of each layer, then that of the output: n_layer + 1 devices.

    Each device gets its share of the offloaded layers, as in llama.cpp (llama-model.cpp,
    load_tensors).
    """
    n_all = n_layer + 1
    wanted = placement.params.n_gpu_layers
    n_gpu = n_all if wanted is None or wanted < 0 else min(wanted, n_all)
    if not placement.devices:
        n_gpu = 0
    bounds = _bounds(placement)
    devices = [placement.cpu] * (n_all - n_gpu)
    for i in range(n_gpu):
        devices.append(placement.devices[bisect_right(bounds, i / n_gpu)])
    return devices


def input_device(layers: Sequence[Device], placement: Placement) -> Device:
    """Return the device of the embeddings, of those of `layer_devices`, or the CPU."""
    return layers[0] if placement.params.embd_offload else placement.cpu


def place(
    path: Path, hp: HParams, types: Mapping[WeightSpec, GGMLType], placement: Placement
) -> dict[str, Home]:
    """Return the home of each weight, by name.

    Args:
        path: the model's file, for messages.
        hp: hyperparameters.
        types: the weights to place, with their types.
        placement: devices and rules.

    Raises:
        UnsupportedModelError: the CPU cannot compute with a weight either; names it and its type.
        RequestError: an override puts a weight into memory that no device can compute with.
    """
    layers = layer_devices(hp.n_layer, placement)
    return {
        spec.name: _home(path, hp, _typed(path, spec, type), spec, layers, placement)
        for spec, type in types.items()
    }


def _home(
    path: Path,
    hp: HParams,
    weight: Tensor,
    spec: WeightSpec,
    layers: list[Device],
    placement: Placement,
) -> Home:
    forced = placement.override(spec.name)
    if forced is not None:
        return _forced_home(hp, weight, spec, forced, placement)
    device = input_device(layers, placement) if spec.layer is None else layers[spec.layer]
    for home in _candidates(device, hp, weight, spec, placement):
        if can_compute(home, hp, weight, spec.op):
            return home
    raise UnsupportedModelError(
        f"{path}: tensor {spec.name}: {placement.cpu.name} cannot run {spec.op.name} on weights of "
        f"type {weight.type.name}"
    )


def _candidates(
    device: Device, hp: HParams, weight: Tensor, spec: WeightSpec, placement: Placement
) -> Iterator[Home]:
    """Yield the homes to try, the best first: those of the device, then those of the CPU.

    A device that takes large batches over from the CPU copies the weights. It needs the plain
    layout, and copies fast from pinned memory only.
    """
    reader = _reader(hp, weight, spec.op)
    offloads = placement.params.op_offload is not False
    takers = [d for d in placement.devices if offloads and d.offload_op(reader)]
    for candidate in dict.fromkeys((device, placement.cpu)):
        taker = next((taker for taker in takers if taker is not device), None)
        if taker is None:
            yield from (Home(candidate, buft) for buft in candidate.extra_buffer_types)
        elif candidate is placement.cpu and taker.host_buffer_type is not None:
            yield Home(candidate, taker.host_buffer_type)
        yield Home(candidate, candidate.buffer_type)


def _forced_home(
    hp: HParams, weight: Tensor, spec: WeightSpec, buft: BufferType, placement: Placement
) -> Home:
    homes: Iterator[Home] = (Home(device, buft) for device in placement.users(buft))
    if buft is placement.cpu.buffer_type:
        better = _candidates(placement.cpu, hp, weight, spec, placement)
        homes = chain((home for home in better if home.buft is not buft), homes)
    for home in homes:
        if can_compute(home, hp, weight, spec.op):
            return home
    raise RequestError(
        f"an override puts {spec.name} into {buft.name}, where no device can run {spec.op.name} on "
        f"weights of type {weight.type.name}"
    )


def _bounds(placement: Placement) -> list[float]:
    """Return the cumulative shares of the devices; the last one is 1."""
    shares = list(placement.params.tensor_split or ())
    shares += [0.0] * (len(placement.devices) - len(shares))
    if not any(shares):
        shares = [float(placement.memory[device.name][0]) for device in placement.devices]
    if not any(shares):  # no device reports its memory
        shares = [1.0] * len(placement.devices)
    ends = list(accumulate(shares))
    return [end / ends[-1] for end in ends]


def _typed(path: Path, spec: WeightSpec, type: GGMLType) -> Tensor:
    if not is_matrix_type(type):
        raise UnsupportedModelError(
            f"{path}: tensor {spec.name}: weights of type {type.name} are not supported"
        )
    return Tensor(type, spec.ne, name=spec.name)


def can_compute(home: Home, hp: HParams, weight: Tensor, op: Op) -> bool:
    """True if the home's device can run `op` on the weight in the home's buffer type.

    Sets the weight's buffer, as support can depend on it: few ops can read a repacked layout.
    """
    weight.buffer = home.buft.alloc_buffer(0)
    return home.device.supports_op(_reader(hp, weight, op))


def _reader(hp: HParams, weight: Tensor, op: Op) -> Tensor:
    """Return a sample node that reads the weight with `op`."""
    n_in, n = weight.ne[0], N_TOKENS_TRIED
    rows = Tensor(GGMLType.F32, (*weight.ne[:2], n))  # a vector, or one for each head
    match op:
        case Op.GET_ROWS:
            return ops.get_rows(weight, Tensor(GGMLType.I32, (n,)))
        case Op.MUL_MAT:
            return ops.mul_mat(weight, Tensor(GGMLType.F32, (n_in, n, *weight.ne[2:])))
        case Op.MUL_MAT_ID:
            ids = Tensor(GGMLType.I32, (hp.n_expert_used, n))
            return ops.mul_mat_id(weight, Tensor(GGMLType.F32, (n_in, 1, n)), ids)
        case Op.MUL:
            return ops.mul(rows, weight)
        case Op.ADD:
            return ops.add(rows, weight)
        case Op.ROPE:
            heads = Tensor(GGMLType.F32, (2 * n_in, 1, n))
            return ops.rope(heads, Tensor(GGMLType.I32, (n,)), weight, n_dims=2 * n_in)
        case Op.FLASH_ATTN_EXT:
            return _attention(hp, weight)
        case Op.SSM_CONV:
            x = Tensor(GGMLType.F32, (weight.ne[1], n))
            states = Tensor(GGMLType.F32, ((n_in - 1) * weight.ne[1], 1))
            return ops.ssm_conv(x, weight, states, Tensor(GGMLType.I32, (2, n)))
        case Op.SSM_SCAN:
            return _scan(weight)
        case Op.ADD_ID:
            ids = Tensor(GGMLType.I32, (hp.n_expert_used, n))
            return ops.add_id(Tensor(GGMLType.F32, (n_in, *ids.ne[:2])), weight, ids)
        case _:
            raise AssertionError(f"no architecture reads a weight with {op.name}")


def _scan(a: Tensor) -> Tensor:
    """Return a selective scan of one token, whose heads have one element each."""
    n_state, n_head = a.ne[:2]
    x, dt = (Tensor(GGMLType.F32, ne) for ne in ((1, n_head, 1), (n_head, 1)))
    b, c = (Tensor(GGMLType.F32, (n_state, 1, 1)) for _ in "bc")
    states, slots = Tensor(GGMLType.F32, (n_state * n_head, 1)), Tensor(GGMLType.I32, (2, 1))
    return ops.ssm_scan(x, dt, a, b, c, states, slots)


def _attention(hp: HParams, sinks: Tensor) -> Tensor:
    """Return attention of one token to a page of one cell, with sinks."""
    layer, one = hp.layers[0], Tensor(GGMLType.I32, (1,))
    q = Tensor(GGMLType.F32, (layer.head_dim_k, sinks.ne[0], 1))
    k, v = (Tensor(GGMLType.F16, (n, 1)) for n in (layer.head_dim_k, layer.head_dim_v))
    return ops.flash_attn_ext(q, k, v, one, one, one, one, one, sinks, page_size=1, scale=1.0)
