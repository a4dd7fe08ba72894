"""Sums of a profile: the time that a phase spends on kinds of ops, nodes, splits and copies.

    for sums in sum_up(records):
        sums.kinds[0].ns / sums.n_steps

Lists are sorted, longest time first. Times are nanoseconds, summed over all steps of the phase.
Knows no context. Tested by tests/observe/test_profile_model.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from ..graph.op import VIEW_OPS, Op
from ..graph.tensor import Tensor
from ..sched.backend import CallTime
from ..sched.profile import SplitTime
from .profile import GENERATION, PROMPT, Records, TimedStep

WHOLE_SPLIT: Final = "whole split"  # the kind for devices that time no calls
PRODUCTS: Final = (Op.MUL_MAT, Op.MUL_MAT_ID)


@dataclass(slots=True)
class Sum:
    """The summed time and costs of several calls, splits or copies."""

    n: int = 0
    ns: int = 0
    n_bytes: int = 0
    n_mul_adds: int = 0

    def add(self, ns: int, n_bytes: int = 0, n_mul_adds: int = 0) -> None:
        self.n += 1
        self.ns += ns
        self.n_bytes += n_bytes
        self.n_mul_adds += n_mul_adds

    @property
    def gb_per_s(self) -> float:
        """Bytes per nanosecond, which are gigabytes per second."""
        return self.n_bytes / self.ns if self.ns else 0.0

    @property
    def gflops(self) -> float:
        """Operations per nanosecond; a multiply-add counts as two."""
        return 2 * self.n_mul_adds / self.ns if self.ns else 0.0


@dataclass(slots=True)
class KindSum(Sum):
    """All calls of a kind on a device. For products, `kind` names the types of the weights."""

    device: str = ""
    kind: str = ""


@dataclass(slots=True)
class NodeSum(Sum):
    """All calls of a kind for the same node, or for the same fused nodes. `name`, `ne`, `type`,
    `index` (in the graph) and `cause` (of its placement) belong to the last node."""

    device: str = ""
    kind: str = ""
    name: str = ""
    nodes: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    split: int = 0
    index: int = 0
    ne: tuple[int, ...] = ()
    type: str = ""
    cause: str = ""


@dataclass(slots=True)
class SplitSum(Sum):
    """All runs of a split, without its copies."""

    split: int = 0
    device: str = ""
    n_nodes: int = 0


@dataclass(slots=True)
class CopySum(Sum):
    """All copies of a tensor to a device before a split."""

    split: int = 0
    name: str = ""
    from_device: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True)
class PhaseSums:
    """The sums of a phase.

    Attributes:
        ns: time of the steps, untimed inside.
        timed_ns: time of the steps with timed splits and copies.
        python_ns: median time per step outside of timed splits and copies.
        calls_ns: sum of the timed kernel calls.
    """

    phase: str
    n_steps: int
    n_tokens: int
    ns: int
    timed_ns: int
    python_ns: int
    calls_ns: int
    kinds: Sequence[KindSum]
    nodes: Sequence[NodeSum]
    splits: Sequence[SplitSum]
    copies: Sequence[CopySum]

    @property
    def tokens_per_s(self) -> float:
        return 1e9 * self.n_tokens / self.ns

    def as_json(self) -> dict[str, Any]:
        """The fields by name, and rates."""
        found = asdict(self)
        for name in ("kinds", "nodes", "copies"):
            rated = zip(found[name], getattr(self, name), strict=True)
            found[name] = [{**row, "gb_per_s": s.gb_per_s} for row, s in rated]
        for name in ("kinds", "nodes"):
            rated = zip(found[name], getattr(self, name), strict=True)
            found[name] = [{**row, "gflops": s.gflops} for row, s in rated]
        return {**found, "tokens_per_s": self.tokens_per_s}


def sum_up(records: Records) -> Iterator[PhaseSums]:
    """The sums of each phase with steps: the prompt, the generation."""
    for phase in (PROMPT, GENERATION):
        plain, splits, calls = (
            [step for step in steps if step.phase == phase]
            for steps in (records.plain, records.splits, records.calls)
        )
        if not plain:
            continue
        kinds, nodes = _calls(calls)
        yield PhaseSums(
            phase=phase,
            n_steps=len(plain),
            n_tokens=sum(step.n_tokens for step in plain),
            ns=sum(step.ns for step in plain),
            timed_ns=sum(step.ns for step in splits),
            python_ns=round(statistics.median(step.python_ns for step in splits)),
            calls_ns=sum(kind.ns for kind in kinds),
            kinds=kinds,
            nodes=nodes,
            splits=_splits(splits),
            copies=_copies(splits),
        )


SumT = TypeVar("SumT", bound=Sum)


def _sorted(sums: Iterable[SumT]) -> list[SumT]:
    return sorted(sums, key=lambda s: -s.ns)


def _calls(steps: Sequence[TimedStep]) -> tuple[list[KindSum], list[NodeSum]]:
    kinds: dict[tuple[str, str], KindSum] = {}
    nodes: dict[tuple[str, str, tuple[str, ...]], NodeSum] = {}
    for split in (split for step in steps for split in step.splits):
        places = {node: i for i, node in enumerate(split.graph.graph.nodes)}
        for call in split.calls:
            took = call.end - call.begin, call.cost.n_bytes, call.cost.n_mul_adds
            kind, names = kind_of(call), tuple(node.name for node in call.nodes)
            row = kinds.setdefault((split.device, kind), KindSum(device=split.device, kind=kind))
            row.add(*took)
            key = split.device, kind, names
            if key not in nodes:
                nodes[key] = _node_sum(split, call, kind, places)
            nodes[key].add(*took)
            if call.kernel not in nodes[key].kernels:
                nodes[key].kernels += (call.kernel,)
        if not split.calls:
            whole = KindSum(device=split.device, kind=WHOLE_SPLIT)
            kinds.setdefault((split.device, WHOLE_SPLIT), whole).add(split.end - split.begin)
    return _sorted(kinds.values()), _sorted(nodes.values())


def kind_of(call: CallTime) -> str:
    """The kind of a call; for products, with the types of the weights."""
    if call.kind != "+".join(node.op.name for node in call.nodes):
        return call.kind  # the call only converts a source
    types = dict.fromkeys(node.src[0].type.name for node in call.nodes if node.op in PRODUCTS)
    return " ".join((call.kind, *types))


def _node_sum(split: SplitTime, call: CallTime, kind: str, places: dict[Tensor, int]) -> NodeSum:
    last = call.nodes[-1]
    return NodeSum(
        device=split.device,
        kind=kind,
        name=last.name,
        nodes=tuple(node.name for node in call.nodes),
        split=split.split,
        index=places.get(last, -1),
        ne=last.ne,
        type=last.type.name,
        cause=split.graph.causes.get(last, ""),
    )


def _splits(steps: Sequence[TimedStep]) -> list[SplitSum]:
    found: dict[tuple[int, str], SplitSum] = {}
    for split in (split for step in steps for split in step.splits):
        key = split.split, split.device
        if key not in found:
            nodes = split.graph.splits[split.split].graph.nodes
            n_nodes = sum(node.op not in VIEW_OPS for node in nodes)
            found[key] = SplitSum(split=split.split, device=split.device, n_nodes=n_nodes)
        found[key].add(split.end - split.begin)
    return _sorted(found.values())


def _copies(steps: Sequence[TimedStep]) -> list[CopySum]:
    found: dict[tuple[int, str, str], CopySum] = {}
    for copy in (copy for step in steps for copy in step.copies):
        key = copy.split, copy.name, copy.device
        if key not in found:
            found[key] = CopySum(
                split=copy.split,
                name=copy.name,
                from_device=copy.from_device,
                device=copy.device,
            )
        found[key].add(copy.end - copy.begin, copy.n_bytes)
    return _sorted(found.values())
