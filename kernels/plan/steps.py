"""The steps of a plan: calls in their order, sources in other forms, which steps must wait.

A source that several nodes read in the same other form (a `Prepared`) is brought into it once:
it stays in one of a few slots of scratch memory until it is overwritten, or the slot is needed for
another. A step depends on those before it that write what it touches, or read what it writes.
Knows addresses, but nothing of what calls compute. Tested by tests/kernels/test_cpu_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from ...graph.tensor import Tensor

MAX_PREPARED: Final = 2  # sources in another form that a call may read


class PreparedLike(Protocol):
    """A source in another form: see a backend's `table.Prepared`."""

    @property
    def tensor(self) -> Tensor: ...
    @property
    def form(self) -> Hashable: ...
    @property
    def size(self) -> int: ...
    @property
    def calls(self) -> Sequence[Any]: ...


class CallLike(Protocol):
    """What any backend's `table.Call` says of the memory it touches.

    `tensors` are those it touches, the first `n_written` of them written (the node and its sources
    where there are none); `shared` is not 0 if it uses scratch memory that other calls use too.
    """

    @property
    def tensors(self) -> Sequence[Tensor]: ...
    @property
    def n_written(self) -> int: ...
    @property
    def prepared(self) -> Sequence[PreparedLike]: ...
    @property
    def shared(self) -> int: ...


CallT = TypeVar("CallT", bound=CallLike)

AddressOf = Callable[[Tensor, Tensor], int]
Range = tuple[int, int]  # of addresses: begin and end
NOWHERE: Final = -1
SHARED: Final = (-1, 0)  # stands for the scratch memory that calls share


@dataclass(slots=True)
class Step(Generic[CallT]):
    """A call of a plan, the node that an error of it names, and the memory it touches.

    `slots` are those of its prepared sources; of one that makes such a source, its own.
    """

    node: Tensor
    call: CallT
    tensors: Sequence[Tensor]
    slots: Sequence[int]
    reads: list[Range]
    writes: list[Range]


@dataclass(slots=True)
class Slot:
    """A region of scratch memory: how large it must be, what it holds now, when it was used."""

    size: int = 0
    key: Any = None  # of what it holds: see `Steps._key`
    source: Range = (NOWHERE, NOWHERE)
    used: int = NOWHERE  # number of the step that used it last


@dataclass(slots=True)
class Steps(Generic[CallT]):
    """Builds the steps of a plan, call after call."""

    address_of: AddressOf
    steps: list[Step[CallT]] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=lambda: [Slot() for _ in range(MAX_PREPARED)])

    def add(self, node: Tensor, call: CallT) -> None:
        """Append a call for `node`, and before it what makes its prepared sources."""
        slots: list[int] = []
        tensors = call.tensors or (node, *node.src)
        for made in call.prepared:
            slots.append(self._prepare(node, tensors, made, slots))
        n = call.n_written
        writes = [self._range(node, t) for t in tensors[:n]]
        reads = [self._range(node, t) for t in tensors[n:]]
        reads += [_slot_range(i) for i in slots]
        self._append(Step(node, call, tensors, slots, reads, writes))

    def _prepare(
        self, node: Tensor, tensors: Sequence[Tensor], made: PreparedLike, taken: Sequence[int]
    ) -> int:
        """The slot that holds a source in another form, which is put there if it is not yet."""
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
            assert not call.prepared, f"{call.kernel}: what is prepared is made of its source alone"
            step = Step(node, call, call.tensors or tensors, (i,), [source], [_slot_range(i)])
            self._append(step)
        size = max(self.slots[i].size, made.size)
        self.slots[i] = Slot(size, key, source, len(self.steps))
        return i

    def _append(self, step: Step[CallT]) -> None:
        if step.call.shared:
            step.writes.append(SHARED)
        self.steps.append(step)
        for slot in self.slots:
            if slot.key is not None and overlaps(slot.source, step.writes):
                slot.key = None

    def _key(self, node: Tensor, made: PreparedLike) -> Any:
        t = made.tensor
        return self.address_of(node, t), t.type, t.ne, t.nb, made.form

    def _range(self, node: Tensor, t: Tensor) -> Range:
        begin = self.address_of(node, t)
        return begin, begin + t.nbytes


def _slot_range(i: int) -> Range:
    # below all addresses, and apart from each other and from SHARED
    return -3 - 2 * i, -2 - 2 * i


def overlaps(a: Range, ranges: Iterable[Range]) -> bool:
    """Whether a range has bytes in common with any of the others."""
    return any(a[0] < end and begin < a[1] for begin, end in ranges)


def depends(step: Step[CallT], earlier: Step[CallT]) -> bool:
    """Whether a step must come after an earlier one: it touches what that writes, or writes what
    that reads."""
    return (
        any(overlaps(r, earlier.writes) for r in step.reads)
        or any(overlaps(r, earlier.writes) for r in step.writes)
        or any(overlaps(r, earlier.reads) for r in step.writes)
    )
