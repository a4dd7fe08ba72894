"""Displaced nodes: those that run elsewhere than the user's flags put their layer, why, and what
would change it.

A node that reads a weight belongs to the weight's home, or to the device of the weight's layer if
only that device's lack of a kernel, and no override, has put the weight elsewhere. Attention
belongs to the device of its pages. Any other node belongs to the device of its layer, and is
displaced only if that one cannot run it: between nodes of one device the scheduler may choose.
Prints nothing and allocates nothing. Tested by tests/runtime/test_displaced.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ..base.errors import PlacementError
from ..graph import GGMLType, Op, Tensor
from ..graph.op import VIEW_OPS
from ..model.arch import WeightSpec
from ..model.loader import LoadedModel
from ..model.placement import Home, can_compute
from ..sched.assignment import CAUSES
from ..sched.backend import Device
from ..sched.scheduled import ScheduledGraph

OP_OFFLOAD: Final = "1.off"  # the cause of nodes that a device has taken over from the CPU
# of weights, to suggest: what files usually are quantised to, the smallest first
USUAL_TYPES: Final = (
    *(GGMLType.Q4_0, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K, GGMLType.Q8_0),
    *(GGMLType.F16, GGMLType.BF16, GGMLType.F32),
)
# what a pool can be of (context.KV_TYPES), the default first
PAGE_TYPES: Final = (GGMLType.F16, GGMLType.BF16, GGMLType.F32, GGMLType.Q8_0)
ON_PAGES: Final = frozenset({Op.FLASH_ATTN_EXT, Op.SET_ROWS})
_LAYER: Final = re.compile(r"-(\d+)$")  # of a node's name, see model/arch/build.py
UNNAMED: Final = "node_"
_EMBEDDING: Final = -1  # stands for the layer of what belongs to no layer


@dataclass(frozen=True, slots=True)
class Displaced:
    """One displaced node.

    Attributes:
        node: its name, or node_N with its place in the graph.
        op: its name.
        device, wanted: names of the device on which it runs, and of that on which it should.
        cause: why the scheduler chose `device`, as in `sched.assignment.CAUSES`.
        why: what keeps it from `wanted`, a sentence without a full stop.
        fix: what would change that for all nodes of its kind; "" if nothing is known.
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
        """What nodes that are told of together have in common."""
        return (self.op, self.cause, self.device, self.wanted, self.why)


def displaced(
    scheduled: ScheduledGraph,
    model: LoadedModel,
) -> list[Displaced]:
    """The displaced nodes of a scheduled graph of `model`, in the graph's order.

    Args:
        scheduled: the graph; attention must have been put where its pages are.
        model: its weights may lie in memory that is only measured.
    """
    return _DisplacedSearch(scheduled, model).run()


def summary(nodes: Iterable[Displaced]) -> list[str]:
    """A line for each kind of displaced nodes, with one of them as an example. Equal nodes, of
    several graphs, count once."""
    kinds: dict[tuple[str, ...], list[Displaced]] = {}
    for node in dict.fromkeys(nodes):
        kinds.setdefault(node.kind, []).append(node)
    return [_line(found) for found in kinds.values()]


def refuse(nodes: Iterable[Displaced]) -> None:
    """Do nothing if there are no displaced nodes.

    Raises:
        PlacementError: there are; names their kinds, and what would change it.
    """
    lines = summary(nodes)
    if lines:
        kinds = "".join(f"\n  {line}" for line in lines)
        raise PlacementError(f"placement is strict, and nodes would be displaced:{kinds}")


def _line(found: list[Displaced]) -> str:
    # one that has a name of its own
    first = next((d for d in found if not d.node.startswith(UNNAMED)), found[0])
    n = len(found)
    what = f"{n} {first.op} node runs" if n == 1 else f"{n} {first.op} nodes run"
    fix = f"; to change it: {first.fix}" if first.fix else ""
    return (
        f"{what} on {first.device}, not on {first.wanted} ({first.cause}), such as {first.node}: "
        f"{first.why}{fix}"
    )


class _Fault(NamedTuple):
    """What keeps a node from where it belongs, and what would help: `types` of its weight would, an
    `override` would say that it is meant to be so."""

    why: str
    fix: str = ""
    types: tuple[str, ...] = ()
    override: str = ""


class _DisplacedSearch:
    """What `displaced` needs to know of a graph."""

    def __init__(
        self,
        scheduled: ScheduledGraph,
        model: LoadedModel,
    ) -> None:
        self.scheduled = scheduled
        self.model = model
        self.cpu = model.devices[-1]
        self.specs = {spec.name: spec for spec in model.arch.tensors(model.hp)}
        self.names: dict[Tensor, list[str]] = {}  # several, where they share their data
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
        if self.model.placement.override(spec.name) is not None:
            return self.model.homes[spec.name].device
        return self.cpu if spec.layer is None else self._of_layer(spec.layer)

    def _weight(self, node: Tensor) -> WeightSpec | None:
        """The weight that a node reads, if that decides where the node belongs."""
        if node.op is Op.ROPE:
            return None  # its factors are too small to, see sched/passes.py
        for src in node.src:
            for name in self.names.get(self._own(src).root, ()):
                if self.specs[name].op is node.op:
                    return self.specs[name]
        return None

    def _own(self, src: Tensor) -> Tensor:
        """What a node reads, if it reads a copy of it."""
        return self.originals.get(src, src)

    def _device(self, node: Tensor) -> Device:
        return self.scheduled.backend_of(node).device

    def _of_layer(self, layer: int) -> Device:
        return self.cpu if layer == _EMBEDDING else self.model.layers[layer]

    def _layers(self) -> dict[Tensor, int]:
        """The layer of every node: its own, else that of the first that reads it; what nobody reads
        belongs to the output."""
        readers: dict[Tensor, int] = {}
        layers: dict[Tensor, int] = {}
        for node in reversed(self.scheduled.graph.nodes):
            layer = self._own_layer(node)
            if layer is None:
                layer = readers.get(node, self.model.hp.n_layer)
            layers[node] = layer
            for src in map(self._own, node.src):
                readers[src] = layer  # the first reader comes last
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
                f"{device.name} takes large batches over from {wanted.name}, with a copy of their "
                "weights each time",
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
        """What says that a weight, and its like in all layers, is meant to be with the CPU."""
        in_layer = re.sub(r"^blk\.\d+", "", spec.name)
        begin = "^" if in_layer == spec.name else ""
        return f"{begin}{re.escape(in_layer)}={self.cpu.buffer_type.name}"

    def _unknown_pages(self, node: Tensor, wanted: Device) -> _Fault:
        k, v = (self._own(src) for src in node.src[1:3])
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
        return _Fault(why, "-nkvo, which keeps keys, values and attention with the CPU")


def _page_types(k: GGMLType, v: GGMLType) -> Iterator[tuple[GGMLType, GGMLType]]:
    """Other types of keys and values to try: first those that change only one."""
    yield from ((t, v) for t in PAGE_TYPES if t is not k)
    yield from ((k, t) for t in PAGE_TYPES if t is not v)
    yield from ((t, t) for t in PAGE_TYPES)


def _fix_of_all(faults: list[_Fault]) -> str:
    """What would help all nodes of a kind."""
    first = faults[0]
    types = [t for t in first.types if all(t in fault.types for fault in faults)]
    overrides = ",".join(dict.fromkeys(fault.override for fault in faults if fault.override))
    fixes = [first.fix] if first.fix else []
    fixes += [f"quantise the weights to {_or(types)}"] if types else []
    fixes += [f'leave them to the CPU knowingly: -ot "{overrides}"'] if overrides else []
    return ", or ".join(fixes)


def _types(sources: Iterable[Tensor]) -> str:
    return ", ".join(src.type.name for src in sources)


def _or(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
