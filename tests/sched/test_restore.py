"""`Graph.restore` makes a graph exactly as it was before it was scheduled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product
from typing import Any

import pytest
from null_machine import Null, inp, names, weight
from random_graphs import Model, RandomGraph

from lamella import OutOfMemoryError
from lamella.alloc.memory import NullBuffer
from lamella.graph import OUTPUT, Graph, Tensor, ops
from lamella.sched import Backend, KeepAlive, NullBackend, NullDevice, Scheduler

FIELDS = tuple(name for name in Tensor.__slots__ if name != "__weakref__")


def state(graph: Graph) -> dict[object, Any]:
    """Every field of a graph and of all tensors that it reaches."""
    reached: set[Tensor] = set()
    left = [*graph.nodes, *graph.leafs]
    while left:
        t = left.pop()
        if t not in reached:
            reached.add(t)
            left += chain(t.src, [t.root])
    fields: dict[object, Any] = {t: [_frozen(getattr(t, name)) for name in FIELDS] for t in reached}
    return fields | {name: _frozen(value) for name, value in vars(graph).items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return tuple(value.items()) if isinstance(value, dict) else value


class Shuffling(NullBackend):
    """Reorders each split as far as sources allow, and fails on request."""

    def __init__(self, device: NullDevice, fail: Callable[[str], None]) -> None:
        super().__init__(device)
        self.fail = fail

    def graph_optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        self.fail("optimize")
        graph.nodes = list(_last_ready_first(graph.nodes))
        return ()

    def graph_plan_create(self, graph: Graph) -> Graph:
        self.fail("plan")
        return graph


def _last_ready_first(nodes: Sequence[Tensor]) -> Iterator[Tensor]:
    left = list(nodes)
    while left:
        ready = next(t for t in reversed(left) if not any(src in left for src in t.src))
        left.remove(ready)
        yield ready


def shuffling(null: Null, fail: Callable[[str], None] = lambda stage: None) -> list[Backend]:
    return [
        Shuffling(b.device, fail) if isinstance(b.device, NullDevice) else b for b in null.backends
    ]


def graph_with_everything(null: Null) -> Graph:
    """Weights on both devices, inputs, a bundle, caches, views and nodes that can be reordered."""
    made = RandomGraph(Model(3, [null.host, *null.gpu_bufts]), seed=3)
    whole = inp(16, name="bundle").set_bundle()
    w = weight(null.gpu_bufts[0], 8, 4)
    parts = [ops.mul_mat(w, ops.view(whole, (8,), offset=o)) for o in (0, 32)]
    return Graph(*made.outputs, ops.add(parts[0], parts[1]).set_output())


def test_the_graph_is_changed_in_every_way() -> None:
    """Otherwise the tests below would prove nothing."""
    null = Null(2)
    graph = graph_with_everything(null)
    before, nodes, sources = state(graph), list(graph.nodes), [list(n.src) for n in graph.nodes]
    flags = [leaf.flags for leaf in graph.leafs]
    scheduled = Scheduler(shuffling(null), parallel=True).alloc_graph(graph)
    assert graph.nodes != nodes
    assert [list(n.src) for n in nodes] != sources
    assert [leaf.flags for leaf in graph.leafs] != flags
    assert all(t.buffer is not None for t in (*graph.nodes, *graph.leafs))
    assert state(graph) != before
    graph.restore()
    assert state(graph) == before
    assert scheduled.released


@pytest.mark.parametrize("parallel", [False, True], ids=["1copy", "4copies"])
@pytest.mark.parametrize("make_backends", [lambda null: null.backends, shuffling])
def test_restored_is_as_before(
    make_backends: Callable[[Null], list[Backend]], parallel: bool
) -> None:
    null = Null(2)
    graph = graph_with_everything(null)
    before, scheduler = state(graph), Scheduler(make_backends(null), parallel=parallel)
    for _ in range(3):
        scheduler.reserve(graph)
        assert state(graph) == before
        scheduler.alloc_graph(graph)
        scheduler.alloc_graph(graph)  # restores the first one
        graph.restore()
        assert state(graph) == before
        graph.restore()  # nothing is left to restore
        assert state(graph) == before


@pytest.mark.parametrize("parallel", [False, True], ids=["1copy", "4copies"])
@pytest.mark.parametrize("stage", ["optimize", "plan", "place"])
def test_a_failure_midway_leaves_the_graph_as_it_was(
    stage: str, parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever split or tensor fails."""
    null = Null(2)
    graph = graph_with_everything(null)
    before, n_left = state(graph), 0

    def fail(now: str) -> None:
        nonlocal n_left
        n_left -= now == stage
        if now == stage and n_left < 0:
            raise OutOfMemoryError("test", 1)

    monkeypatch.setattr(NullBuffer, "init_tensor", lambda buffer, tensor: fail("place"))
    scheduler = Scheduler(shuffling(null, fail), parallel=parallel)
    attempts: list[Callable[[Graph], object]] = [scheduler.alloc_graph]
    if stage != "plan":
        attempts.append(scheduler.reserve)
    for attempt, n_good in product(attempts, range(4)):
        n_left = n_good
        with pytest.raises(OutOfMemoryError):
            attempt(graph)
        assert state(graph) == before
    n_left = 10**6
    scheduler.graph_compute(scheduler.alloc_graph(graph))


def test_nodes_added_after_scheduling_stay() -> None:
    null = Null()
    a, b = ops.sqr(inp(4)).named("a"), ops.sqr(inp(4)).named("b")
    graph = Graph(ops.add(a, b).named("c"))
    scheduler = Scheduler(shuffling(null))
    scheduler.alloc_graph(graph)
    assert names(graph.nodes) == ["b", "a", "c"]
    graph.build_forward_expand(ops.sqr(graph.nodes[-1]).named("d"))
    graph.restore()
    assert names(graph.nodes) == ["a", "b", "c", "d"]
    assert not any(leaf.flags & OUTPUT for leaf in graph.leafs)
