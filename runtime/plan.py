"""The plan of a model, from its file's header: where it would run, and its memory to the byte.

    with open_gguf(path, header_only=True) as file:
        plan = make_plan(open_measured(file, placement, params.context), params)

The code that loads a model also makes the plan. It places weights, makes the pool and schedules
graphs, but in a `MeasuredMemory`, whose buffers have addresses and no memory. So the plan equals
what a load allocates. It does not count Python, the vocabulary and compiled kernels. The memory of
a GPU's driver is a margin of its own. Knows no request, prints nothing.
Tested by tests/runtime/test_plan_exact.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..alloc.buffer import Buffer, BufferType, Usage, buffer_of
from ..alloc.memory import MeasuredMemory
from ..base.errors import UnsupportedModelError
from ..base.units import size_text
from ..graph.tensor import Tensor
from ..model.adapter_file import AdapterFile
from ..model.card import bytes_read, model_card
from ..model.context import Context
from ..model.control_file import NO_CONTROL, ControlFiles
from ..model.embed_context import EmbedContext, context_type
from ..model.gguf import GGUFFile
from ..model.graph_context import GraphContext
from ..model.kv_groups import most_cells, prefix_cells
from ..model.kv_memory import KVRead
from ..model.layer_memory import group_indices, groups_of
from ..model.loader import LoadedModel, place_model
from ..model.params import ContextParams, EmbeddingParams
from ..model.placement import Placement
from ..model.pooling import Pooling
from ..sched.backend import Device, copy_seconds
from ..sched.measured import MeasuredBackend
from ..sched.scheduled import ScheduledGraph
from ..sched.scheduler import ReservedSizes
from .adapters import read_adapters, read_control
from .displaced import Displaced, displaced
from .params import OpenParams


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes in one buffer type: weights, keys and values, tensors of graphs (`compute`), and
    scratch memory of backends (`work`)."""

    buffer_type: str
    weights: int = 0
    kv: int = 0
    compute: int = 0
    work: int = 0

    @property
    def total(self) -> int:
        return sum(self.by_usage().values())

    def by_usage(self) -> dict[str, int]:
        return {
            "weights": self.weights,
            "kv": self.kv,
            "compute": self.compute,
            "work": self.work,
        }


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The memory of a device under a plan.

    Attributes:
        free, capacity: bytes of the device when planned; UNLIMITED if unknown.
        margin: bytes that the device's driver will take.
        caveats: of the device, by their labels.
        n_bytes_read: bytes of weights that the device reads for one token.
        n_bytes_kv: bytes of keys and values on it for each token of the context.
        n_bytes_kv_window: bytes on it for each token in pools that do not grow with the context.
        kv_reads: the keys and values that its layers read for one token.
    """

    name: str
    description: str
    n_layers: int
    free: int
    capacity: int
    margin: int
    caveats: Mapping[str, str]
    memory: tuple[MemoryPlan, ...]
    n_bytes_read: int
    n_bytes_kv: int
    n_bytes_kv_window: int
    kv_reads: tuple[KVRead, ...]

    def n_bytes_kv_read(self, n_before: int) -> int:
        """Bytes of keys and values that a token with `n_before` earlier ones reads on it."""
        return int(sum(layer.n_bytes(n_before) for layer in self.kv_reads))

    @property
    def needed(self) -> int:
        return sum(m.total for m in self.memory)

    @property
    def shortfall(self) -> int:
        """Bytes that the device lacks; 0 if it lacks none."""
        return max(0, self.needed + self.margin - self.free)


@dataclass(frozen=True, slots=True)
class OverridePlan:
    """The effect of an override: `n_weights` weights, `n_bytes` in total, match `pattern` and no
    earlier one. They go to `buffer_type`; for the CPU, to the best of its buffer types."""

    pattern: str
    buffer_type: str
    n_weights: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """A weight of the model that the file's block uses in place: the block's plan has no memory for
    it. `name`: several, with commas, if it is tied."""

    name: str
    buffer_type: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The keys and values of a group of layers, or the states.

    Attributes:
        name: "full", "latent", "state", or the window: "window 512".
        layers: those with keys and values of their own, or with states, in order.
        n_shared: layers that use those of another layer.
        n_ctx: tokens that its pool has room for.
        n_max: the most tokens that it has room for, however large the context; None: no limit.
        n_prefix: those of them that are for shared prefixes; 0 if it grows with the context.
        n_bytes: of the pool, the scratch page or slot included.
        cell_bytes: of one token, or of one slot.
        n_slots: states that the pool has room for; 0: the group has keys and values.
    """

    name: str
    layers: tuple[int, ...]
    n_shared: int
    n_ctx: int
    n_max: int | None
    n_prefix: int
    n_bytes: int
    cell_bytes: int
    n_slots: int = 0

    @property
    def is_fixed(self) -> bool:
        """True if a larger context does not need a larger pool."""
        return self.n_max is not None and self.n_ctx >= self.n_max

    def n_more_bytes(self, n_ctx: int) -> int:
        """Bytes to add for a larger context."""
        n_cells = n_ctx if self.n_max is None else min(n_ctx, self.n_max)
        return max(0, n_cells - self.n_ctx) * self.cell_bytes


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """A graph for `n_tokens` tokens, with the number of its copies between devices and their bytes.
    The bytes are an upper limit: of experts, only those in use are copied. `seconds_linked`: of the
    copies between processes, one after the other; None: there are none."""

    n_tokens: int
    n_nodes: int
    n_splits: int
    n_copies: int
    n_bytes_copied: int
    seconds_linked: float | None
    displaced: tuple[Displaced, ...]


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """Everything known about a model before it is loaded.

    Attributes:
        params: the options, chosen values filled in.
        placement: the devices that `params` name, and the rules.
        reserved: the sizes of compute and scratch memory.
        path: the model's file.
        name: the architecture, and the type of most weights.
        n_bytes, n_params: of all weights in the file.
        n_layers, n_gpu_layers: all layers, and those on devices other than the CPU. The output
            counts as a layer.
        n_ctx, n_ctx_train, n_ubatch, n_seq_max: cells of the pool, and sizes of a step.
        devices: the CPU is the last one.
        groups: the layers' keys and values.
        decode, prefill: the graph of one token, and that of a whole ubatch.
        overrides: in the order in which they are tried.
        no_pipeline: why ubatches run one after the other; "" if they overlap.
        effect: what the size of the context changes in the computation; "" if nothing.
        choice: one line about the values that fitting chose, and the effect; "" if there is none.
        is_reduced: the choice is less than what would run without a limit of memory.
        notes: lines about the model and the choice.
        pooling: of embeddings; None: the model generates text.
        n_out: elements of a vector, or scores of a pair of texts; 0: the model generates text.
        n_step: the most tokens of a step with several texts; 0: the model generates text.
        draft: the plan of the draft model, beside this one; None: there is none.
        is_block: it is of the file's block that predicts further tokens, not of its model.
        shared: of a block, the weights that the model has already.
        copied: lines about those that are loaded again, and why.
    """

    params: OpenParams
    placement: Placement
    reserved: ReservedSizes
    path: Path
    name: str
    n_bytes: int
    n_params: int
    n_layers: int
    n_gpu_layers: int
    n_ctx: int
    n_ctx_train: int
    n_ubatch: int
    n_seq_max: int
    devices: tuple[DevicePlan, ...]
    groups: tuple[GroupPlan, ...]
    decode: GraphPlan
    prefill: GraphPlan
    overrides: tuple[OverridePlan, ...]
    no_pipeline: str
    effect: str = ""
    choice: str = ""
    is_reduced: bool = False
    notes: tuple[str, ...] = ()
    pooling: Pooling | None = None
    n_out: int = 0
    n_step: int = 0
    draft: ModelPlan | None = None
    is_block: bool = False
    shared: tuple[SharedPlan, ...] = ()
    copied: tuple[str, ...] = ()

    @property
    def n_bytes_kv(self) -> int:
        """Bytes of keys and values for each token of the context."""
        return sum(device.n_bytes_kv for device in self.devices)

    @property
    def has_states(self) -> bool:
        """True if layers keep states."""
        return any(group.n_slots for group in self.groups)

    @property
    def displaced(self) -> tuple[Displaced, ...]:
        """The displaced nodes of both graphs."""
        return (*self.decode.displaced, *self.prefill.displaced)

    @property
    def fits(self) -> bool:
        return not any(device.shortfall for device in self.devices)


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model and its context in measured memory, and the buffers that they allocated there."""

    model: LoadedModel
    context: GraphContext
    buffers: Collection[Buffer]


class _SketchedContext(Context):
    """A context that reserves its largest graph only. A full context needs as much or more."""

    def _reserved_sizes(self) -> Collection[tuple[int, int, int]]:
        return {(self.n_ubatch, self.n_ubatch, self.n_seq_max)}


def open_measured(
    file: GGUFFile,
    placement: Placement,
    params: ContextParams,
    embedding: EmbeddingParams | None = None,
    adapters: Sequence[AdapterFile] = (),
    control: ControlFiles = NO_CONTROL,
    *,
    no_pipeline: str = "",
    sketch: bool = False,
    block_of: LoadedModel | None = None,
    keeps_hidden: bool = False,
) -> MeasuredModel:
    """Place a model as `load_model` and its context do, but allocate and compile nothing.

    Args:
        sketch: measure the largest graph only. This takes a fraction of the time; the real context
            may need more memory.
        block_of: measure the file's block beside this model of it, see `load_model`.
        keeps_hidden: see `Context`.

    Raises:
        As `load_model` and the context, but never OutOfMemoryError.
    """
    memory = MeasuredMemory()
    model, _ = place_model(file, placement, memory, adapters, control, block_of)
    kind = context_type(model.arch, embedding or EmbeddingParams())
    for what, files in (("LoRA adapters", adapters), ("control vectors", control.files)):
        if files and kind is not Context:
            raise UnsupportedModelError(
                f"{files[0].path}: {what} of models that compute embeddings are not supported yet"
            )
    if kind is Context:
        kind = partial(_SketchedContext if sketch else Context, keeps_hidden=keeps_hidden)
    context = kind(
        model,
        params,
        no_pipeline=no_pipeline,
        open_backend=partial(MeasuredBackend, memory=memory),
    )
    return MeasuredModel(model, context, memory.buffers)


def open_planned(file: GGUFFile, plan: ModelPlan) -> MeasuredModel:
    """Place a model again as planned; see `open_measured`. It is no block."""
    params = plan.params
    return open_measured(
        file,
        plan.placement,
        params.context,
        params.embedding,
        read_adapters(params.adapters),
        read_control(params.adapters),
        no_pipeline=plan.no_pipeline,
        keeps_hidden=params.draft.draft_mtp,
    )


def place_planned(file: GGUFFile, plan: ModelPlan) -> LoadedModel:
    """Place the weights of a model again as planned, in measured memory."""
    return place_model(file, plan.placement, MeasuredMemory())[0]


def plan_devices(measured: MeasuredModel) -> tuple[DevicePlan, ...]:
    """The memory that each device would hold; the CPU is the last one."""
    return tuple(_device_plan(measured, device) for device in measured.model.devices)


def make_plan(measured: MeasuredModel, params: OpenParams) -> ModelPlan:
    """The plan of a model that was opened with `params`."""
    model, context = measured.model, measured.context
    decode = context.plan_graph(1, 1)
    prefill = context.plan_graph(context.n_ubatch, 1)
    card = model_card(context)
    embed = context if isinstance(context, EmbedContext) else None
    return ModelPlan(
        params=params,
        placement=model.placement,
        reserved=context.reserved(),
        path=model.path,
        name=card.name,
        n_bytes=card.n_bytes,
        n_params=card.n_params,
        n_layers=len(_layers(model)),
        n_gpu_layers=sum(device is not model.placement.cpu for device in _layers(model)),
        n_ctx=context.n_ctx,
        n_ctx_train=model.hp.n_ctx_train,
        n_ubatch=context.n_ubatch,
        n_seq_max=context.n_seq_max,
        devices=plan_devices(measured),
        groups=_group_plans(context),
        decode=_graph_plan(decode, 1, measured),
        prefill=_graph_plan(prefill, context.n_ubatch, measured),
        overrides=_override_plans(model),
        no_pipeline=context.no_pipeline,
        effect=model.arch.describe(context.n_ctx),
        notes=tuple(model.arch.notes(context.n_ctx)),
        pooling=embed.pooling if embed else None,
        n_out=embed.n_out if embed else 0,
        n_step=embed.n_step if embed else 0,
        is_block=model.arch.n_hidden > 0,
        shared=_shared_plans(model),
        copied=tuple(_copied(model)),
    )


def _layers(model: LoadedModel) -> Sequence[Device]:
    """The device of each layer that has weights; the output is the last one."""
    found = {model.specs[name].layer for name in model.weights}
    return [device for il, device in enumerate(model.layers) if il in found]


def _device_plan(measured: MeasuredModel, device: Device) -> DevicePlan:
    owners = {
        buft: d
        for d in reversed(measured.model.devices)
        for buft in (d.buffer_type, *d.extra_buffer_types)
    }
    cpu = measured.model.placement.cpu
    bufts: dict[BufferType, dict[Usage, int]] = {}
    for buffer in measured.buffers:
        # memory that no device owns, such as pinned memory, is the host's
        if buffer.size and not buffer.freed and owners.get(buffer.buft, cpu) is device:
            uses = bufts.setdefault(buffer.buft, dict.fromkeys(Usage, 0))
            uses[buffer.usage] += buffer.size
    free, capacity = measured.model.placement.memory[device.name]
    memory = (
        MemoryPlan(
            buft.name, uses[Usage.WEIGHTS], uses[Usage.ANY], uses[Usage.COMPUTE], uses[Usage.WORK]
        )
        for buft, uses in bufts.items()
    )
    return DevicePlan(
        device.name,
        device.description,
        sum(d is device for d in _layers(measured.model)),
        free,
        capacity,
        device.driver_margin,
        device.caveats,
        # the device's own memory first
        tuple(sorted(memory, key=lambda m: (m.buffer_type != device.name, m.buffer_type))),
        bytes_read(measured.model)[device.name],
        _bytes_kv(measured, device, has_window=False),
        _bytes_kv(measured, device, has_window=True),
        tuple(read for owner, read in measured.context.reads() if owner is device),
    )


def _bytes_kv(measured: MeasuredModel, device: Device, *, has_window: bool) -> int:
    """Bytes of keys and values for each token on a device, in pools with or without a window."""
    return sum(
        layer.cell_bytes
        for group in measured.context.groups
        for il, layer in group.layers.items()
        if (group.pool.window is not None) is has_window and measured.model.kv_home(il) is device
    )


def _group_plans(context: GraphContext) -> tuple[GroupPlan, ...]:
    memory = context.model.hp.memory
    indices, groups = Counter(group_indices(memory)), groups_of(memory)
    found = [
        GroupPlan(
            group.name,
            tuple(group.layers),
            indices[i] - len(group.layers),
            group.pool.n_pages * group.pool.page_size,
            most_cells(groups[i], context.params, context.n_ubatch),
            0 if (w := group.pool.window) is None else prefix_cells(w.n_swa, context.params),
            group.n_bytes,
            group.cell_bytes,
        )
        for i, group in enumerate(context.groups)
    ]
    if (state := context.state_group) is not None:
        layers, n_slots = tuple(state.states), state.pool.n_pages
        found.append(
            GroupPlan(state.name, layers, 0, 0, 0, 0, state.n_bytes, state.cell_bytes, n_slots)
        )
    return tuple(found)


def _shared_plans(model: LoadedModel) -> tuple[SharedPlan, ...]:
    names: dict[Tensor, list[str]] = {}
    for name in sorted(model.shared):
        names.setdefault(model.weights[name], []).append(name)
    return tuple(
        SharedPlan(", ".join(of), buffer_of(weight).buft.name, weight.nbytes)
        for weight, of in names.items()
    )


def _copied(model: LoadedModel) -> Iterator[str]:
    for name, why in model.copied.items():
        n_bytes = size_text(model.weights[name].nbytes)
        yield f"{name} is in memory twice ({n_bytes}): {why}"


def _override_plans(model: LoadedModel) -> tuple[OverridePlan, ...]:
    overrides = model.placement.overrides
    found: list[list[int]] = [[] for _ in overrides]
    for name, weight in model.weights.items():
        first = (i for i, (pattern, _) in enumerate(overrides) if re.search(pattern, name))
        i = next(first, None)
        if i is not None:
            found[i].append(weight.nbytes)
    return tuple(
        OverridePlan(pattern, buft.name, len(sizes), sum(sizes))
        for (pattern, buft), sizes in zip(overrides, found, strict=True)
    )


def _graph_plan(scheduled: ScheduledGraph, n_tokens: int, measured: MeasuredModel) -> GraphPlan:
    runs = [(run, t) for run in scheduled.runs for t in (*run.transfers, *run.ahead)]
    copies = [t for _, t in runs]
    linked = [
        copy_seconds(t.src_backend.device, run.split.backend.device, t.nbytes) for run, t in runs
    ]
    known = [seconds for seconds in linked if seconds is not None]
    return GraphPlan(
        n_tokens,
        len(scheduled.graph.nodes),
        scheduled.n_splits,
        len(copies),
        sum(copy.nbytes for copy in copies),
        sum(known) if known else None,
        tuple(displaced(scheduled, measured.model)),
    )
