"""Finds displaced nodes: nodes that run on another device than the user's flags give their layer.

Reports the reason of each, and a flag that changes it. Where a node belongs:

- A node that reads a weight belongs to the device of the weight's layer, to the device of the
  override that matches the weight, or to that of the model that shares the weight.
- Attention belongs to the device of its pages.
- Every other node belongs to the device of its layer. It is displaced only if that device cannot
  run it; otherwise the scheduler was free to choose.

Prints nothing and allocates nothing. Tested by tests/runtime/test_displaced.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ..base.errors import PlacementError
from ..graph import GGMLType, Op, Tensor
from ..graph.op import VIEW_OPS, WRITTEN_SOURCES
from ..graph.types import KV_TYPES
from ..model.arch import WeightSpec
from ..model.loader import LoadedModel
from ..model.placement import Home, can_compute
from ..sched.assignment import CAUSES
from ..sched.backend import Device
from ..sched.scheduled import ScheduledGraph

OP_OFFLOAD: Final = "1.off"  # the cause of nodes that a device runs for the CPU
# types of weights to suggest: those that files usually have, the smallest first
USUAL_TYPES: Final = (
    *(GGMLType.Q4_0, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K, GGMLType.Q8_0),
    *(GGMLType.F16, GGMLType.BF16, GGMLType.F32),
)
ON_PAGES: Final = frozenset({Op.FLASH_ATTN_EXT, Op.INDEX_SCORES, Op.SET_ROWS, *WRITTEN_SOURCES})
_LAYER: Final = re.compile(r"-(\d+)$")  # at the end of a node's name, see model/arch/layer_build.py
UNNAMED: Final = "node_"
_EMBEDDING: Final = -1  # stands for a layer: the token embedding has none


@dataclass(frozen=True, slots=True)
class Displaced:
    """One displaced node.

    Attributes:
        node: its name, or node_N if it has none: its index in the graph.
        op: the op's name.
        device, wanted: names of the device that runs it, and of the device it belongs to.
        cause: the scheduler's reason code for `device`, see `sched.assignment.CAUSES`.
        why: the reason that `wanted` does not run it, a sentence without a full stop.
        fix: the remedies for all nodes of its kind; "" if none is known.
    """

    node: str
    op: str
    device: str
    wanted: str
    cause: str
    why: str
    fix: str

    @property
    def kind(self) -> tuple[str, ...]:
        """The key by which nodes are reported together."""
        return (self.op, self.cause, self.device, self.wanted, self.why)


def displaced(
    scheduled: ScheduledGraph,
    model: LoadedModel,
) -> list[Displaced]:
    """The displaced nodes of a scheduled graph of `model`, in the graph's order.

    Args:
        scheduled: the graph; its attention must be assigned to the devices of its pages.
        model: its weights may be in measured memory.
    """
    return _DisplacedSearch(scheduled, model).run()


def summary(nodes: Iterable[Displaced]) -> list[str]:
    """One line for each kind of displaced node, with an example. Nodes that are equal in several
    graphs count once."""
    kinds: dict[tuple[str, ...], list[Displaced]] = {}
    for node in dict.fromkeys(nodes):
        kinds.setdefault(node.kind, []).append(node)
    return [_line(found) for found in kinds.values()]


def refuse(nodes: Iterable[Displaced]) -> None:
    """Raise if there are displaced nodes.

    Raises:
        PlacementError: names each kind of displaced node, and its remedies.
    """
    lines = summary(nodes)
    if lines:
        kinds = "".join(f"\n  {line}" for line in lines)
        raise PlacementError(f"placement is strict, but nodes would be displaced:{kinds}")


def _line(found: list[Displaced]) -> str:
    # prefer an example with a name
    first = next((d for d in found if not d.node.startswith(UNNAMED)), found[0])
    n = len(found)
    what = f"{n} {first.op} node runs" if n == 1 else f"{n} {first.op} nodes run"
    fix = f"; to change it: {first.fix}" if first.fix else ""
    return (
        f"{what} on {first.device}, not on {first.wanted} ({first.cause}), for example "
        f"{first.node}: {first.why}{fix}"
    )


class _Fault(NamedTuple):
    """Why a node is displaced, and its remedies: a flag (`fix`), other `types` of its weight, or an
    `override` that places the weight there on purpose."""

    why: str
    fix: str = ""
    types: tuple[str, ...] = ()
    override: str = ""


class _DisplacedSearch:
    """The search for displaced nodes in one graph."""

    def __init__(
        self,
        scheduled: ScheduledGraph,
        model: LoadedModel,
    ) -> None:
        self.scheduled = scheduled
        self.model = model
        self.cpu = model.devices[-1]
        self.specs = model.specs
        self.names: dict[Tensor, list[str]] = {}  # several if weights share their data
        for name, weight in model.weights.items():
            self.names.setdefault(weight, []).append(name)
        self.originals = {
            copy: src for (src, _), copies in scheduled.copies.items() for copy in copies
        }

    def run(self) -> list[Displaced]:
        layers = self._layers()
        found: list[Displaced] = []
        faults: dict[tuple[str, ...], list[_Fault]] = {}
        for i, node in enumerate(self.scheduled.graph.nodes):
            if node.op in VIEW_OPS:
                continue
            wanted, device = self._wanted(node, layers[node]), self._device(node)
            if wanted is not device:
                fault, cause = self._fault(node, device, wanted), self.scheduled.causes[node]
                name = node.name or f"{UNNAMED}{i}"
                at = (name, node.op.name, device.name, wanted.name, cause)
                found.append(Displaced(*at, fault.why, fix=""))
                faults.setdefault(found[-1].kind, []).append(fault)
        fixes = {kind: _fix_of_all(faults[kind]) for kind in faults}
        return [replace(d, fix=fixes[d.kind]) for d in found]

    # --- where a node belongs ---

    def _wanted(self, node: Tensor, layer: int) -> Device:
        spec = self._weight(node)
        if spec is not None:
            return self._wanted_for(spec)
        device = self._of_layer(layer)
        if node.op in ON_PAGES:
            return device if self.model.placement.params.kv_offload else self.cpu
        return self._device(node) if device.supports_op(node) else device

    def _wanted_for(self, spec: WeightSpec) -> Device:
        is_forced = self.model.placement.override(spec.name) is not None
        if is_forced or spec.name in self.model.shared:
            return self.model.homes[spec.name].device
        return self._of_layer(_EMBEDDING if spec.layer is None else spec.layer)

    def _weight(self, node: Tensor) -> WeightSpec | None:
        """The weight that decides where a node belongs, None if no weight does."""
        if node.op is Op.ROPE:
            return None  # its factors are too small to decide, see sched/passes.py
        for src in node.src:
            for name in self.names.get(self._original(src).root, ()):
                if self.specs[name].op is node.op:
                    return self.specs[name]
        return None

    def _original(self, src: Tensor) -> Tensor:
        """The source itself, or the tensor that it is a copy of."""
        return self.originals.get(src, src)

    def _device(self, node: Tensor) -> Device:
        return self.scheduled.backend_of(node).device

    def _of_layer(self, layer: int) -> Device:
        return self.model.input if layer == _EMBEDDING else self.model.layers[layer]

    def _layers(self) -> dict[Tensor, int]:
        """The layer of every node: its own, else that of its first reader. A node without readers
        belongs to the output."""
        readers: dict[Tensor, int] = {}
        layers: dict[Tensor, int] = {}
        for node in reversed(self.scheduled.graph.nodes):
            layer = self._own_layer(node)
            if layer is None:
                layer = readers.get(node, self.model.hp.n_layer)
            layers[node] = layer
            for src in map(self._original, node.src):
                readers[src] = layer  # in reverse order, so the first reader wins
        return layers

    def _own_layer(self, node: Tensor) -> int | None:
        named = _LAYER.search(node.name)
        if named:
            return int(named[1])
        spec = self._weight(node)
        if spec is None:
            return None
        return _EMBEDDING if spec.layer is None else spec.layer

    # --- why it is not there ---

    def _fault(self, node: Tensor, device: Device, wanted: Device) -> _Fault:
        spec, cause = self._weight(node), self.scheduled.causes[node]
        if spec is not None and self.model.homes[spec.name].device is not wanted:
            return self._unknown_type(node, spec, wanted)
        if cause == OP_OFFLOAD:
            return _Fault(
                f"{device.name} runs large batches for {wanted.name} and copies their weights each "
                "time (op offload)",
                "--no-op-offload",
            )
        if wanted.supports_op(node):
            return _Fault(f"{device.name} was chosen: {CAUSES[cause.rstrip('0123456789')]}")
        if node.op is Op.FLASH_ATTN_EXT:
            return self._unknown_pages(node, wanted)
        why = f"{wanted.name} has no kernel for {node.op.name} with sources of {_types(node.src)}"
        if spec is not None:
            return _Fault(why, override=self._override(spec))
        return _Fault(why, "use another device (-dev), or fewer layers (-ngl)")

    def _unknown_type(self, node: Tensor, spec: WeightSpec, wanted: Device) -> _Fault:
        type = self.model.weights[spec.name].type
        why = f"{wanted.name} has no kernel for {node.op.name} with weights of {type.name}"
        home, hp = Home(wanted, wanted.buffer_type), self.model.hp
        known = tuple(
            t.name
            for t in USUAL_TYPES
            if len(spec.ne) > 1  # vectors are F32
            and spec.ne[0] % t.block_size == 0
            and can_compute(home, hp, Tensor(t, spec.ne), spec.op)
        )
        return _Fault(why, types=known, override=self._override(spec))

    def _override(self, spec: WeightSpec) -> str:
        """The -ot value that places a weight, in every layer, on the CPU."""
        in_layer = re.sub(r"^blk\.\d+", "", spec.name)
        begin = "^" if in_layer == spec.name else ""
        return f"{begin}{re.escape(in_layer)}={self.cpu.buffer_type.name}"

    def _unknown_pages(self, node: Tensor, wanted: Device) -> _Fault:
        k, v = (self._original(src) for src in node.src[1:3])
        why = (
            f"{wanted.name} has no kernel for {node.op.name} with keys of {k.type.name} and values "
            f"of {v.type.name}"
        )
        for type_k, type_v in _page_types(k.type, v.type):
            kv = [Tensor(type_k, k.ne), Tensor(type_v, v.ne)]
            src = [node.src[0], *kv, *node.src[3:]]
            other = Tensor(node.type, node.ne, op=node.op, params=node.params, src=src)
            if wanted.supports_op(other):
                flags = [f"-ctk {type_k.name.lower()}"] if type_k is not k.type else []
                flags += [f"-ctv {type_v.name.lower()}"] if type_v is not v.type else []
                return _Fault(why, " ".join(flags))
        return _Fault(why, "-nkvo, which keeps the KV cache and attention on the CPU")


def _page_types(k: GGMLType, v: GGMLType) -> Iterator[tuple[GGMLType, GGMLType]]:
    """Other types of keys and values to try: first those that change only one."""
    yield from ((t, v) for t in KV_TYPES if t is not k)
    yield from ((k, t) for t in KV_TYPES if t is not v)
    yield from ((t, t) for t in KV_TYPES)


def _fix_of_all(faults: list[_Fault]) -> str:
    """The remedies that help all nodes of a kind."""
    first = faults[0]
    types = [t for t in first.types if all(t in fault.types for fault in faults)]
    overrides = ",".join(dict.fromkeys(fault.override for fault in faults if fault.override))
    fixes = [first.fix] if first.fix else []
    fixes += [f"quantize the weights to {_or(types)}"] if types else []
    fixes += [f'place them on the CPU explicitly: -ot "{overrides}"'] if overrides else []
    return ", or ".join(fixes)


def _types(sources: Iterable[Tensor]) -> str:
    return ", ".join(src.type.name for src in sources)


def _or(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
