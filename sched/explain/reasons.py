"""The reason for a tensor's place, in words and with the names of the tensors that decided it.

The passes record causes. This module finds the deciding neighbor or reader in the graph. Tested by
tests/sched/test_explain.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ...alloc.buffer import Usage
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor, written_source
from ..scheduled import ScheduledGraph

Original = Callable[[Tensor], Tensor]  # from a source to the tensor that it copies


def label(t: Tensor) -> str:
    """A tensor's name, or its op if it has no name."""
    return t.name or t.op.name.lower()


def rule_of(cause: str) -> str:
    """The cause without the index of a source: a key of `CAUSES`."""
    return "1.wgt" if cause.startswith("1.wgt") else cause


class Reasons:
    """The reasons for the places of a scheduled graph's tensors."""

    def __init__(self, scheduled: ScheduledGraph, original: Original) -> None:
        self._scheduled = scheduled
        self._original = original
        nodes = scheduled.graph.nodes
        self._computing = [n for n in nodes if n.op not in VIEW_OPS]
        self._at = {n: i for i, n in enumerate(self._computing)}

    def why(self, t: Tensor) -> str:
        """The reason for a tensor of the graph, without a full stop."""
        return _RULES[rule_of(self._scheduled.causes[t])](self, t, self._device(t))

    def _device(self, t: Tensor) -> str:
        return self._scheduled.backend_of(t).name

    def _where(self, t: Tensor, device: str) -> str:
        """The place of data that was allocated before: on a device, or in a buffer type."""
        name: str = t.root.buffer.buft.name
        return f"on {device}" if name == device else f"in {name}"

    # --- one for each cause ---

    def _pinned(self, t: Tensor, device: str) -> str:
        data = [s.root for s in t.src if _is_persistent(s.root)]
        if not data:
            reader = self._reader(t, device)
            if reader is None or rule_of(self._scheduled.causes[reader]) != "1.wgt":
                return "it was pinned"
            return f"it was pinned to the weights of {label(reader)}, which reads it"
        names = list(dict.fromkeys(label(t) for t in data))
        verb = "is" if len(names) == 1 else "are"
        return f"it was pinned to its data; {_listed(names)} {verb} {self._where(data[0], device)}"

    def _by_data(self, t: Tensor, device: str) -> str:
        data = (written_source(t) or t).root
        where = self._where(data, device)
        if t.op is Op.NONE and t.view_src is None:
            return f"its data is {where}"
        what = "is a view of" if t.op in VIEW_OPS or t.op is Op.NONE else "writes into"
        return f"it {what} {label(data)}, which is {where}"

    def _by_viewed(self, t: Tensor, device: str) -> str:
        return f"it is a view of {label(t.root)}, which {device} can use where it is"

    def _by_input(self, t: Tensor, device: str) -> str:
        return "it is an input of the graph, written by the host"

    def _by_offload(self, t: Tensor, device: str) -> str:
        weights = next((o for o in map(self._original, t.src) if is_weight(o)), None)
        what = "its weights" if weights is None else f"its weights {label(weights)}"
        return f"{what} are in host memory, and {device} takes over the op for a batch this large"

    def _by_weights(self, t: Tensor, device: str) -> str:
        j = int(self._scheduled.causes[t].removeprefix("1.wgt"))
        weights = self._original(t.src[j])
        return f"its weights {label(weights)} are {self._where(weights, device)}"

    def _by_neighbor(self, t: Tensor, device: str) -> str:
        found = self._neighbor(t)
        if found is None:
            return f"{device} is the first device that supports {t.op.name}"
        near, step = found
        verb = "follows" if step < 0 else "comes before"
        return f"it {verb} {label(near)} on {device}, which supports it"

    def _by_sources(self, t: Tensor, device: str) -> str:
        here = [label(s) for s in map(self._original, t.src) if self._device(s) == device]
        names = f": {_listed(list(dict.fromkeys(here)))}" if here else ""
        return f"{device} can read the most of its sources without a copy{names}"

    def _by_upgrade(self, t: Tensor, device: str) -> str:
        return f"{device} uses the same memory as the assigned device, and has a higher priority"

    def _by_view(self, t: Tensor, device: str) -> str:
        return f"it is a view of {label(t.root)} on {device}"

    def _by_reader(self, t: Tensor, device: str) -> str:
        reader = self._reader(t, device)
        name = "the node" if reader is None else label(reader)
        return f"{name}, which reads it, is on {device}"

    def _by_copy(self, t: Tensor, device: str) -> str:
        return f"it is a copy for a split on {device}"

    def _by_rotation(self, t: Tensor, device: str) -> str:
        return "it is one of the copies of a graph input that a pipeline rotates through"

    def _reader(self, t: Tensor, device: str) -> Tensor | None:
        """The first node on a device that reads a tensor."""
        readers = (n for n in self._computing if any(self._original(s).root is t for s in n.src))
        return next((n for n in readers if self._device(n) == device), None)

    def _neighbor(self, t: Tensor) -> tuple[Tensor, int] | None:
        """The node whose device spread to this one, and its direction: -1 above, 1 below.

        Nodes above come first, as pass 2 spreads down first. None for a view, and for a node
        without such a neighbor.
        """
        if t not in self._at:
            return None
        for only_next in (True, False):
            for step in (-1, 1):
                near = self._look(t, step, only_next)
                if near is not None:
                    return near, step
        return None

    def _look(self, t: Tensor, step: int, only_next: bool) -> Tensor | None:
        """The first node in a direction that is on the same device for a reason other than 2.sup.

        `only_next`: stop at the first node on another device.
        """
        nodes, here = self._computing, self._scheduled.backend_of(t)
        i = self._at[t] + step
        while 0 <= i < len(nodes):
            if self._scheduled.backend_of(nodes[i]) is not here:
                if only_next:
                    return None
            elif self._scheduled.causes[nodes[i]] != "2.sup":
                return nodes[i]
            i += step
        return None


_RULES: Final[dict[str, Callable[[Reasons, Tensor, str], str]]] = {
    "usr": Reasons._pinned,
    "1.dst": Reasons._by_data,
    "1.vsrc": Reasons._by_viewed,
    "1.inp": Reasons._by_input,
    "1.off": Reasons._by_offload,
    "1.wgt": Reasons._by_weights,
    "2.sup": Reasons._by_neighbor,
    "3.best": Reasons._by_sources,
    "3.upg": Reasons._by_upgrade,
    "4.vsrc": Reasons._by_view,
    "4.cur": Reasons._by_reader,
    "4.cpy": Reasons._by_copy,
    "6.cpy": Reasons._by_rotation,
}


def is_weight(t: Tensor) -> bool:
    """True if a tensor is in a buffer of weights."""
    buffer = t.root.buffer
    return buffer is not None and buffer.usage is Usage.WEIGHTS


def _is_persistent(t: Tensor) -> bool:
    """True for data, other than weights, that stays in memory from one run to the next."""
    return t.op is Op.NONE and t.buffer is not None and t.buffer.usage is Usage.ANY


def _listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
