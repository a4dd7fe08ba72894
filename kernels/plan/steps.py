"""The steps of a plan: calls in order, their prepared sources, and the dependencies of steps.

A source that several nodes read in the same other form is prepared once. The result stays in a
slot of scratch memory until the source is overwritten or the slot is reused. A step depends on an
earlier step that writes memory which the step accesses, or reads memory which it writes.
Knows addresses, but no ops. Tested by tests/kernels/test_cpu_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, Generic, NamedTuple

from ...base.errors import BackendError
from ...graph.tensor import Tensor, written_source
from .calls import CallT, PreparedSource

MAX_PREPARED: Final = 2  # most prepared sources of a call

AddressOf = Callable[[Tensor, Tensor], int]
Range = tuple[int, int]  # begin and end of a range of addresses
NOWHERE: Final = -1
SHARED: Final = (-1, 0)  # stands for the scratch memory that calls share


@dataclass(slots=True)
class Step(Generic[CallT]):
    """A call of a plan, the node that its errors name, and the memory that it accesses.

    `slots` has the slots of its prepared sources, or the slot of the prepared source that it makes.
    """

    node: Tensor
    call: CallT
    tensors: Sequence[Tensor]
    slots: Sequence[int]
    reads: list[Range]
    writes: list[Range]


@dataclass(slots=True)
class Slot:
    """A region of scratch memory for prepared sources."""

    size: int = 0
    key: Any = None  # identifies the content: see `Steps._key`
    source: Range = (NOWHERE, NOWHERE)
    used: int = NOWHERE  # the step that used it last


class ScratchLayout(NamedTuple):
    """The layout of a plan's scratch memory: the memory that calls share, then the slots.

    `slots` has the offset of each slot, `size` is the total size; both are in bytes.
    """

    slots: list[int]
    size: int


@dataclass(slots=True)
class Steps(Generic[CallT]):
    """Builds the steps of a plan, call after call.

    `others` are calls that the graph needs at other addresses. Scratch memory has room for them.
    """

    address_of: AddressOf
    others: Sequence[CallT] = ()
    steps: list[Step[CallT]] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=lambda: [Slot() for _ in range(MAX_PREPARED)])

    def add(self, node: Tensor, call: CallT) -> None:
        """Append a call for `node`, after the calls that make its prepared sources."""
        slots: list[int] = []
        tensors = call.tensors or (node, *node.src)
        for made in call.prepared:
            slots.append(self._prepare(node, tensors, made, slots))
        n, states = call.n_written, written_source(node)
        writes = [self._range(node, t) for i, t in enumerate(tensors) if i < n or t is states]
        reads = [self._range(node, t) for t in tensors[n:]]
        reads += [_slot_range(i) for i in slots]
        self._append(Step(node, call, tensors, slots, reads, writes))

    def calls(self) -> Iterator[CallT]:
        """Yield the calls of all steps, and `others`."""
        yield from (step.call for step in self.steps)
        yield from self.others

    def scratch_layout(self, alignment: int) -> ScratchLayout:
        """The places of scratch memory and slots, at multiples of `alignment` bytes."""

        def aligned(n: int) -> int:
            return -(-n // alignment) * alignment

        shared = max((aligned(call.scratch) for call in self.calls()), default=0)
        ends = list(accumulate((aligned(slot.size) for slot in self.slots), initial=shared))
        return ScratchLayout(ends[:-1], ends[-1])

    def _prepare(
        self,
        node: Tensor,
        tensors: Sequence[Tensor],
        made: PreparedSource[CallT],
        taken: Sequence[int],
    ) -> int:
        """Return the slot of a prepared source. Append the calls that make it if no slot has it."""
        key = self._key(node, made)
        for i, slot in enumerate(self.slots):
            if slot.key == key:
                slot.used = len(self.steps)
                return i
        free = [i for i in range(len(self.slots)) if i not in taken]
        assert free, f"{node!r} has more than {len(self.slots)} prepared sources"
        i = min(free, key=lambda i: self.slots[i].used)
        source = self._range(node, made.tensor)
        for call in made.calls:
            assert not call.prepared, f"{call.kernel}: a prepared source needs another one"
            step = Step(node, call, call.tensors or tensors, (i,), [source], [_slot_range(i)])
            self._append(step)
        size = max(self.slots[i].size, made.size)
        self.slots[i] = Slot(size, key, source, len(self.steps))
        return i

    def _append(self, step: Step[CallT]) -> None:
        if step.call.scratch:
            step.writes.append(SHARED)
        self.steps.append(step)
        for slot in self.slots:
            if slot.key is not None and overlaps(slot.source, step.writes):
                slot.key = None

    def _key(self, node: Tensor, made: PreparedSource[CallT]) -> Any:
        t = made.tensor
        return self.address_of(node, t), t.type, t.ne, t.nb, made.form

    def _range(self, node: Tensor, t: Tensor) -> Range:
        begin = self.address_of(node, t)
        return begin, begin + t.nbytes


def _slot_range(i: int) -> Range:
    # below all addresses; different from each other and from SHARED
    return -3 - 2 * i, -2 - 2 * i


def index_error(node: Tensor, value: int, limit: int) -> BackendError:
    """The error that a kernel reports for a node: an index is out of range."""
    return BackendError(
        f"{node.op.name.lower()} {node!r}: index {value} must be at least 0 and below {limit}"
    )


def overlaps(a: Range, ranges: Iterable[Range]) -> bool:
    """True if a range has bytes in common with any of the others."""
    return any(a[0] < end and begin < a[1] for begin, end in ranges)


def depends(step: Step[CallT], earlier: Step[CallT]) -> bool:
    """True if a step must run after an earlier one, which writes memory that the step accesses, or
    reads memory that the step writes."""
    return (
        any(overlaps(r, earlier.writes) for r in step.reads)
        or any(overlaps(r, earlier.writes) for r in step.writes)
        or any(overlaps(r, earlier.reads) for r in step.writes)
    )
