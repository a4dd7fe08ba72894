"""Explanations of scheduled graphs: plain values for where everything is and runs, and why.

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
    """A device of the scheduler, and the buffer type of its tensors."""

    name: str
    description: str
    type: str
    buffer_type: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor is: `size` bytes from `offset` on in a buffer of this type.

    `usage` is the buffer's. It is "compute" if the graph allocator planned the place; then `chunk`
    is the number of the buffer.
    """

    buffer_type: str
    usage: str
    chunk: int | None
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """A copy made before a split computes, or, if `ahead`, while the split before it computes.

    `kind` is "input" of the graph, "weight", "experts" (`n_bytes` at most, as only used experts are
    copied), "data" that stays between runs (a cache), or "activation". `seconds` is the time of a
    copy between processes, by their measured links; None for others. `step` is an index in
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
    seconds: float | None
    ahead: bool
    step: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class SplitFacts:
    """The nodes `first` to `last` of the graph, which `device` computes after its copies.

    `copies` are indexes. `why` is the reason why the split begins here. `n_computed` counts its
    nodes without views.
    """

    index: int
    device: str
    first: int
    last: int
    n_computed: int
    why: str
    copies: Sequence[int]


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """A source of a node: the index of the node or leaf, and of the copy that is read, if any."""

    name: str
    kind: str
    index: int | None
    device: str
    cause: str
    copy: int | None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node. `ne` is its shape, ne[0] first; `why` is its cause in words. A view computes nothing.
    `in_place_of` names the source whose memory the node takes over."""

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
    """A leaf: `kind` is "input" of the graph, "weight", or "data" that stays between runs."""

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
    """A step of the scheduler's own order, in which memory is planned.

    `kind` is the "node" or the "copy" with this index, a "part" of that copy, or "keep", which only
    keeps a tensor alive until it is copied or used.
    """

    kind: str
    index: int | None


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A tensor in a compute buffer: bytes from `offset` on, from step `first` to `last`, both
    included. -1 is before the first step; the number of steps means never freed.

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
    """A compute buffer: `size` bytes are planned for graphs like this one, and `reserved` bytes are
    allocated, enough for the largest graph."""

    buffer_type: str
    chunk: int
    size: int
    reserved: int
    rectangles: Sequence[Rectangle]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A whole scheduled graph. `bytes_copied` is an upper bound if experts are copied; `causes` are
    the causes that occur, with their meaning."""

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
        """The record as lists, strings and numbers, by the names of the fields."""
        return asdict(self)
