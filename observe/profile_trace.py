"""Writes a profile as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

The format is Chrome's Trace Event Format, as JSON. One lane has the calls of `Context.decode`; each
device has a lane with its splits, their kernel calls and their copies. Times are microseconds from
the first step. Tested by tests/observe/test_profile_trace.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..graph.tensor import format_shape
from ..sched.backend import CallTime
from ..sched.profile import CopyTime, SplitTime
from .profile import TimedStep
from .profile_sums import kind_of

Event = dict[str, Any]

PROCESS: Final = 1
STEPS_LANE: Final = "Context.decode"


def chrome_trace(steps: Sequence[TimedStep], devices: Sequence[str], process: str) -> Event:
    """The trace of timed steps. Lanes are in the order of the names in `devices`."""
    lanes = {name: i for i, name in enumerate((STEPS_LANE, *devices))}
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [*_metadata(lanes, process), *_Trace(lanes, steps).events()],
    }


def _metadata(lanes: dict[str, int], process: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": process}}
    for name, lane in lanes.items():
        head = {"ph": "M", "pid": PROCESS, "tid": lane}
        yield {**head, "name": "thread_name", "args": {"name": name}}
        yield {**head, "name": "thread_sort_index", "args": {"sort_index": lane}}


class _Trace:
    """The events of steps, in order."""

    def __init__(self, lanes: dict[str, int], steps: Sequence[TimedStep]) -> None:
        self._lanes = lanes
        self._steps = steps
        self._zero = steps[0].begin if steps else 0

    def events(self) -> Iterator[Event]:
        for i, step in enumerate(self._steps):
            args = {"step": i, "tokens": step.n_tokens}
            yield self._event(step.phase, "step", STEPS_LANE, step.begin, step.end, args)
            for part in step.parts:
                if isinstance(part, CopyTime):
                    yield self._copy(part)
                else:
                    yield from self._split(part)

    def _copy(self, copy: CopyTime) -> Event:
        args = {"from": copy.from_device, "to": copy.device, "bytes": copy.n_bytes}
        return self._event(f"copy {copy.name}", "copy", copy.device, copy.begin, copy.end, args)

    def _split(self, split: SplitTime) -> Iterator[Event]:
        nodes = split.graph.splits[split.split].graph.nodes
        args = {"nodes": len(nodes), "first": nodes[0].name, "last": nodes[-1].name}
        name = f"split {split.split}"
        yield self._event(name, "split", split.device, split.begin, split.end, args)
        for call in split.calls:
            args = _call_args(split, call)
            yield self._event(kind_of(call), "call", split.device, call.begin, call.end, args)

    def _event(
        self, name: str, category: str, lane: str, begin: int, end: int, args: Event
    ) -> Event:
        return {
            "ph": "X",
            "pid": PROCESS,
            "tid": self._lanes[lane],
            "name": name,
            "cat": category,
            "ts": (begin - self._zero) / 1000,
            "dur": (end - begin) / 1000,
            "args": args,
        }


def _call_args(split: SplitTime, call: CallTime) -> Event:
    last = call.nodes[-1]
    args: Event = {
        "node": last.name,
        "shape": format_shape(last),
        "sources": [f"{src.name} {format_shape(src)}" for src in last.src],
        "kernel": call.kernel,
        "bytes": call.cost.n_bytes,
        "cause": split.graph.causes.get(last, ""),
    }
    if len(call.nodes) > 1:
        args["nodes"] = [node.name for node in call.nodes]
    if call.cost.n_mul_adds:
        args["mul_adds"] = call.cost.n_mul_adds
    return args
