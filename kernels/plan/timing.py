"""The kernel calls of a plan for a profile: their kinds, nodes and costs.

A backend that can time single calls uses `Timing`:

    timing = Timing(parts)
    for first, last in timing.runs():   # data must be read before some calls
        timing.look(first)
        ...                             # compute those calls
        timing.took(first, times)       # the begin of each, the end of the last
    timing.calls()

Knows no backend and no clock. Tested by tests/kernels/test_timing.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from ...alloc.host import read_array
from ...graph.cost import Cost, KnownUse, cost, data_bytes
from ...graph.op import VIEW_OPS, WRITTEN_SOURCES, Op
from ...graph.tensor import Tensor
from ...sched.backend import CallTime
from .steps import Step

# ops whose cost depends on data
DEPEND_ON_DATA: Final = frozenset({Op.MUL_MAT_ID, Op.FLASH_ATTN_EXT, *WRITTEN_SOURCES})


@dataclass(frozen=True, slots=True)
class Part:
    """A call of a plan, as `CallTime` describes it.

    Its cost is `fixed`, or else that of its nodes. `kept` are the tensors that the call writes.
    `reads`: the cost depends on data.
    """

    kind: str
    kernel: str
    nodes: tuple[Tensor, ...]
    kept: tuple[Tensor, ...] = ()
    fixed: Cost | None = None

    @property
    def reads(self) -> bool:
        return self.fixed is None and any(node.op in DEPEND_ON_DATA for node in self.nodes)


def node_part(node: Tensor) -> Part:
    """The one call that computes a node."""
    return Part(node.op.name, node.op.name.lower(), (node,))


def parts_of(nodes: Sequence[Tensor], steps: Sequence[Step[Any]]) -> list[Part]:
    """The parts of a plan that computes `nodes`, one for each of its steps."""
    chains = chains_of(nodes, steps)
    made = {id(call): p for step in steps for p in step.call.prepared for call in p.calls}
    parts: list[Part] = []
    for i, step in enumerate(steps):
        chain, name = chains[step.node], step.call.kernel.name
        if id(step.call) in made:
            prepared = made[id(step.call)]
            kind = f"{chain[0].op.name} {name.split('_')[0]}"  # quantize, pack, group
            fixed = Cost(data_bytes(prepared.tensor), prepared.size)
            parts.append(Part(kind, name, chain, fixed=fixed))
            continue
        kept = tuple(step.tensors[: step.call.n_written])
        goes_on = i + 1 < len(steps) and steps[i + 1].node is step.node
        kind = "+".join(node.op.name for node in chain)
        parts.append(Part(kind, name, chain, kept, fixed=Cost() if goes_on else None))
    return parts


def merged_part(parts: Sequence[Part]) -> Part:
    """The part of one call that computes several parts."""
    if len(parts) == 1:
        return parts[0]
    fixed = [part.fixed for part in parts if part.fixed is not None]
    assert len(fixed) in (0, len(parts)), "a part of several calls was merged"
    kind = ", ".join(dict.fromkeys(part.kind for part in parts))
    nodes = tuple(node for part in parts for node in part.nodes)
    kept = tuple(t for part in parts for t in part.kept)
    return Part(kind, parts[0].kernel, nodes, kept, _sum(fixed) if fixed else None)


def _sum(costs: Sequence[Cost]) -> Cost:
    return Cost(*map(sum, zip(*costs, strict=True)))


def chains_of(
    nodes: Sequence[Tensor], steps: Sequence[Step[Any]]
) -> dict[Tensor, tuple[Tensor, ...]]:
    """For each node with steps, all nodes that these steps compute, in order: the node itself, and
    sources that have no steps because they are fused into it."""
    chains: dict[Tensor, tuple[Tensor, ...]] = {}
    place = {node: i for i, node in enumerate(nodes)}
    taken = {step.node for step in steps}
    for last in dict.fromkeys(step.node for step in steps):
        chain, found = [last], [last]
        while found:
            for src in found.pop().src:
                # also through views: a chain may have views between its nodes
                if src in place and src not in taken and not src.is_empty:
                    taken.add(src)
                    found.append(src)
                    chain.append(src)
        chains[last] = tuple(
            sorted((n for n in chain if n.op not in VIEW_OPS), key=place.__getitem__)
        )
    return chains


def _attended(seq: Any, begin: Any, end: Any) -> KnownUse:
    """The use of a FLASH_ATTN_EXT whose tokens have these sequences and spans."""
    spans: dict[int, tuple[int, int]] = {}
    for s, first, last in zip(seq.tolist(), begin.tolist(), end.tolist(), strict=True):
        least, most = spans.get(s, (first, last))
        spans[s] = min(least, first), max(most, last)
    pairs = int((end.astype(np.int64) - begin).sum())
    return KnownUse(cells=sum(end - begin for begin, end in spans.values()), pairs=pairs)


class Timing:
    """Collects the times of a plan's parts, and the data of their costs."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._used: dict[int, KnownUse] = {}
        self._data: dict[Tensor, Any] = {}
        self._times: list[tuple[int, int, int]] = []

    def runs(self) -> Iterator[tuple[int, int]]:
        """Ranges of parts, (first, last + 1). `look` must be called before each."""
        begins = [i for i, part in enumerate(self._parts) if i == 0 or part.reads]
        yield from pairwise([*begins, len(self._parts)])

    def look(self, i: int) -> None:
        """Read the data that the cost of part `i` depends on."""
        if self._parts[i].reads:
            self._used[i] = self._look(self._parts[i].nodes)

    def _look(self, nodes: Sequence[Tensor]) -> KnownUse:
        for node in nodes:
            if node.op is Op.MUL_MAT_ID:
                return KnownUse(experts=int(np.unique(self._read(node.src[2])).size))
            if node.op is Op.FLASH_ATTN_EXT:
                return _attended(*(self._read(node.src[i]).reshape(-1) for i in (4, 6, 7)))
            if node.op in WRITTEN_SOURCES:
                slots = self._read(node.src[WRITTEN_SOURCES[node.op] + 1])
                return KnownUse(states=int(np.unique(slots[..., 1]).size))
        return KnownUse()

    def _read(self, tensor: Tensor) -> Any:
        if tensor not in self._data:  # a computation writes data only once
            self._data[tensor] = read_array(tensor)
        return self._data[tensor]

    def took(self, first: int, times: Sequence[int]) -> None:
        """Record the times of the parts from `first` on: the begin of each, the end of the last."""
        for i, (begin, end) in enumerate(pairwise(times), first):
            self._times.append((i, int(begin), int(end)))

    def calls(self) -> list[CallTime]:
        """All recorded calls with their costs."""
        return [self._call(*times) for times in self._times]

    def _call(self, i: int, begin: int, end: int) -> CallTime:
        part = self._parts[i]
        fixed, used = part.fixed, self._used.get(i)
        price = cost(part.nodes, used, part.kept) if fixed is None else fixed
        return CallTime(part.kind, part.kernel, part.nodes, price, begin, end)
