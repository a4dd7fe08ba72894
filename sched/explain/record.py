"""Explanations of scheduled graphs: plain values that say where everything runs and lies, and why.

`from_graph` makes them from a scheduled graph, `render` writes them as text. docs/scheduling.md
describes their JSON; `VERSION` changes when a change would break programs that read it.
Tested by tests/sched/test_explain.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device that the scheduler could use, and the memory in which its tensors are placed."""

    name: str
    description: str
    type: str
    buffer_type: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: `size` bytes from `offset` on in a buffer of that type.

    `usage` is the buffer's: "compute" for what the graph allocator planned, which then also has
    the number of the buffer, `chunk`.
    """

    buffer_type: str
    usage: str
    chunk: int | None
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """A copy made before a split computes, or `ahead`, while the split before it does.

    `kind` says what is copied: "input" of the graph, "weight", "experts" (at most `n_bytes`, as
    only those in use are copied), "data" that stays (a cache), "activation". `step` is its place in
    `Explanation.steps`.
    """

    index: int
    name: str
    source: str
    kind: str
    from_device: str
    device: str
    split: int
    n_bytes: int
    ahead: bool
    step: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class SplitFacts:
    """The nodes `first` to `last` of the graph, which `device` computes after the copies, by index,
    were made. `why` says why the split begins there; `n_computed` are its nodes without views."""

    index: int
    device: str
    first: int
    last: int
    n_computed: int
    why: str
    copies: Sequence[int]


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What a node reads: the node or leaf of that index, through the copy of that index, if any."""

    name: str
    kind: str
    index: int | None
    device: str
    cause: str
    copy: int | None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node. `ne` is its shape, ne[0] first; `why` explains its cause with names. A view computes
    nothing. `in_place_of` names the source whose memory it takes over."""

    index: int
    step: int
    split: int
    op: str
    name: str
    ne: Sequence[int]
    type: str
    n_bytes: int
    device: str
    cause: str
    why: str
    is_view: bool
    sources: Sequence[SourceFacts]
    place: Place | None
    in_place_of: str | None


@dataclass(frozen=True, slots=True)
class LeafFacts:
    """What no node computes: `kind` is "input" of the graph, "weight", or "data" that stays."""

    index: int
    name: str
    kind: str
    ne: Sequence[int]
    type: str
    n_bytes: int
    device: str
    cause: str
    why: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class OrderStep:
    """A step of the scheduler's own order, in which memory is planned: the "node" or "copy" of that
    index, a "part" of that copy, or a "keep", which only keeps a tensor until it is copied or
    used."""

    kind: str
    index: int | None


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A tensor in a compute buffer: bytes from `offset` on, from step `first` to `last`, both
    included. -1: before the first step; the number of steps: never given back.

    `kind` and `index` are those of an `OrderStep`, or the kind is "leaf" or "spare" (a copy that
    other runs of a pipeline use). `over` is the index of the rectangle whose memory it takes over
    in its first step.
    """

    kind: str
    index: int | None
    name: str
    first: int
    last: int
    offset: int
    size: int
    over: int | None


@dataclass(frozen=True, slots=True)
class ComputeBuffer:
    """A compute buffer: `size` bytes are planned for graphs like this one, `reserved` is what the
    buffer has, for the largest."""

    buffer_type: str
    chunk: int
    size: int
    reserved: int
    rectangles: Sequence[Rectangle]


@dataclass(frozen=True, slots=True)
class Explanation:
    """All of a scheduled graph. `bytes_copied` is an upper bound where experts are copied;
    `causes` has the causes that occur, with what they mean."""

    version: int
    n_nodes: int
    n_splits: int
    n_copies: int
    bytes_copied: int
    devices: Sequence[DeviceFacts]
    causes: dict[str, str]
    splits: Sequence[SplitFacts]
    copies: Sequence[CopyFacts]
    nodes: Sequence[NodeFacts]
    leafs: Sequence[LeafFacts]
    steps: Sequence[OrderStep]
    memory: Sequence[ComputeBuffer]

    def as_json(self) -> dict[str, Any]:
        """Lists, strings and numbers only, by the names of the fields."""
        return asdict(self)
