"""Replay recorded graphs through the scheduler and print its decisions.

    python -m lamella.sched.replay CASES.jsonl           # one JSON object a case, in order
    python -m lamella.sched.replay --check CASES.jsonl   # compare with the decisions in the file

A case describes backends, tensors and the expanded outputs; `docs/replay.md` has the format.
Devices are null devices: nothing is computed. Tested by tests/sched/test_replay.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..alloc.buffer import UNLIMITED, BufferType, Usage
from ..alloc.tallocr import alloc_tensors
from ..base.errors import GraphError, LamellaError, OutOfMemoryError, SchedulingError
from ..graph import ops
from ..graph.graph import Graph
from ..graph.op import Op
from ..graph.tensor import INPUT, Tensor
from ..graph.types import GGMLType
from .backend import Backend, DeviceType
from .null import NullBufferType, NullDevice
from .scheduled import ScheduledGraph
from .scheduler import Scheduler

Json = dict[str, Any]


def replay(case: Json) -> Json:
    """The decisions on one case, or its error, in the format of the file's `expect`.

    Raises:
        ValueError: the description is incomplete or inconsistent.
    """
    try:
        return {"id": case["id"], **_decisions(_Case(case))}
    except (GraphError, SchedulingError, OutOfMemoryError) as e:
        return {"id": case["id"], "error": str(e)}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError) as e:
        raise ValueError(f"case {case.get('id')}: {type(e).__name__}: {e}") from e


class _Case:
    """The objects that a case describes."""

    def __init__(self, case: Json) -> None:
        limits = {"alignment": case["alignment"], "max_size": case.get("max_size", UNLIMITED)}
        if any(not isinstance(n, int) or n <= 0 for n in limits.values()):
            raise ValueError(f"alignment and max_size must be whole numbers above 0, not {limits}")
        self.bufts: dict[str, BufferType] = {
            b["name"]: NullBufferType(b["name"], is_host=b["host"], **limits)
            for b in case["buffer_types"]
        }
        self.backends = {b["name"]: self._backend(b) for b in case["backends"]}
        self.tensors: dict[str, Tensor] = {}
        for t in case["tensors"]:
            self.tensors[t["name"]] = self._tensor(t)
        self._allocate(case["tensors"])
        for name in case["outputs"]:
            self.tensors[name].set_output()
        self.graph = Graph(*(self.tensors[name] for name in case["expand"]))
        self.scheduler = Scheduler(
            list(self.backends.values()), parallel=case["parallel"], op_offload=case["op_offload"]
        )
        for name, backend in case["user"]:
            self.scheduler.set_tensor_backend(self.tensors[name], self.backends[backend])

    def _backend(self, b: Json) -> Backend:
        every = "*" in b["supports_ops"]
        device = NullDevice(
            b["name"],
            DeviceType(b["type"]),
            self.bufts[b["buffer_type"]],
            bufts=[self.bufts[name] for name in b["supports_buffer_types"]],
            ops=None if every else [_op(name) for name in b["supports_ops"]],
            offload_ops=[_op(name) for name in b["offload_ops"]],
        )
        return device.init_backend()

    def _tensor(self, t: Json) -> Tensor:
        op, type = _op(t["op"]), GGMLType[t["type"]]
        if op is Op.NONE:
            flags = INPUT if t["kind"] == "input" else 0
            return Tensor(type, t["ne"], name=t["name"], flags=flags)
        src = [self.tensors[name] for name in t["src"]]
        if op in _VIEWS:
            return _VIEWS[op](src, t.get("params", [])).named(t["name"])
        return Tensor(type, t["ne"], name=t["name"], op=op, src=src)

    def _allocate(self, described: list[Json]) -> None:
        for t in described:
            if t.get("buffer") is not None:
                usage = Usage.WEIGHTS if t["kind"] == "weights" else Usage.ANY
                alloc_tensors([self.tensors[t["name"]]], self.bufts[t["buffer"]], usage)


# params: RESHAPE ne0 ne1; VIEW ne0 ne1 offset; the others none
_VIEWS: dict[Op, Callable[[list[Tensor], list[int]], Tensor]] = {
    Op.RESHAPE: lambda src, p: ops.reshape(src[0], p),
    Op.VIEW: lambda src, p: ops.view(src[0], p[:2], nb=src[0].nb[:2], offset=p[2]),
    Op.TRANSPOSE: lambda src, p: ops.transpose(src[0]),
    Op.PERMUTE: lambda src, p: ops.permute(src[0], p),
    Op.CPY: lambda src, p: ops.cpy(src[0], src[1]),
}


def _op(name: str) -> Op:
    try:
        return Op[name]
    except KeyError:
        raise GraphError(f"unknown op {name!r}; known: {', '.join(Op.__members__)}") from None


def _decisions(case: _Case) -> Json:
    scheduled = case.scheduler.alloc_graph(case.graph)
    return {
        "nodes": [
            {**_place(scheduled, t), "src": [s.name for s in t.src]} for t in case.graph.nodes
        ],
        "leafs": [_place(scheduled, t) for t in case.graph.leafs],
        "splits": [
            {
                "backend": s.backend.name,
                "i_start": s.i_start,
                "i_end": s.i_end,
                "inputs": [t.name for t in s.inputs],
            }
            for s in scheduled.splits
        ],
        "order": [t.name for t in scheduled.order.graph.nodes],
        "alloc": list(_allocations(scheduled)),
        "buffer_sizes": case.scheduler.buffer_sizes(),
    }


def _place(scheduled: ScheduledGraph, t: Tensor) -> Json:
    return {
        "name": t.name,
        "backend": scheduled.backend_of(t).name,
        "cause": scheduled.causes[t],
    }


def _allocations(scheduled: ScheduledGraph) -> Iterator[Json]:
    graph, layout = scheduled.order.graph, scheduled.layout
    kinds = (("leaf", graph.leafs, layout.leafs), ("node", graph.nodes, layout.nodes))
    for kind, tensors, addresses in kinds:
        for t, address in zip(tensors, addresses, strict=True):
            if address is not None:
                yield {
                    "kind": kind,
                    "name": t.name,
                    "buft": t.buffer.buft.name,
                    "chunk": address.chunk,
                    "offset": address.offset,
                    "size": address.size,
                }


# --- command line ---


def main(argv: list[str] | None = None) -> int:
    """Replay a file; return 1 if `--check` finds a difference, 2 if the file is invalid."""
    parser = argparse.ArgumentParser(prog="python -m lamella.sched.replay", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path, help="cases, one JSON object a line")
    parser.add_argument("--check", action="store_true", help="compare with the file's decisions")
    args = parser.parse_args(argv)
    try:
        cases = list(_read(args.file))
        return _check(cases) if args.check else _print(cases)
    except BrokenPipeError:  # the reader of stdout has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, ValueError) as e:
        print(f"{args.file}: {e}", file=sys.stderr)
        return 2
    except LamellaError as e:
        print(e, file=sys.stderr)
        return 2


def _read(file: Path) -> Iterator[Json]:
    for i, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if line.strip():
            try:
                case = json.loads(line)
            except ValueError as e:
                raise ValueError(f"line {i}: {e}") from None
            if not isinstance(case, dict) or "id" not in case:
                raise ValueError(f"line {i}: a case must be an object with an id")
            yield case


def _print(cases: list[Json]) -> int:
    for case in cases:
        print(json.dumps(replay(case), separators=(",", ":")))
    return 0


def _check(cases: list[Json]) -> int:
    n_equal = 0
    for case in cases:
        if "expect" not in case and "expect_error" not in case:
            raise ValueError(f"case {case['id']}: it has no expect, so there is nothing to check")
        differing = differences(case, replay(case))
        n_equal += not differing
        if differing:
            print(f"case {case['id']}: other {', '.join(differing)}")
    print(f"{n_equal} of {len(cases)} cases decided as recorded")
    return 0 if n_equal == len(cases) else 1


def differences(case: Json, got: Json) -> list[str]:
    """The parts of a case's decisions that differ from the recorded ones."""
    if case.get("expect_error"):
        return [] if "error" in got else ["outcome: an error was expected"]
    if "error" in got:
        return [f"outcome: {got['error']}"]
    return [key for key, expected in case["expect"].items() if got.get(key) != expected]


if __name__ == "__main__":
    sys.exit(main())
