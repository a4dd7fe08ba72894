"""Cutting graphs into splits, copies between them, and the order that memory is planned for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from null_machine import Null, inp, leaf, names, weight

from lamella.graph import INPUT, OUTPUT, Graph, Op, Tensor, ops
from lamella.sched import Backend, KeepAlive, NullBackend, NullDevice, Scheduler
from lamella.sched.passes import assign_backends
from lamella.sched.split import SplitGraph, build_order, pass5_split, pass6_graph_inputs


def cut(null: Null, graph: Graph, user: dict[Tensor, int], n_copies: int = 1) -> SplitGraph:
    a = assign_backends(null.assignment(graph, user=user))
    return pass5_split(SplitGraph(a, n_copies, 0))


def spans(s: SplitGraph) -> list[tuple[str, int, int, list[str]]]:
    return [(x.backend.name, x.i_start, x.i_end, names(x.inputs)) for x in s.splits]


def test_a_split_ends_where_the_backend_changes() -> None:
    null = Null()
    a = ops.sqr(inp(4, name="x")).named("a")
    b = ops.sqr(a).named("b")
    c = ops.sqr(b).named("c")
    s = cut(null, Graph(c), {a: 0, b: 0, c: 1})
    assert spans(s) == [("GPU0", 0, 2, ["x"]), ("CPU", 2, 3, ["b"])]
    assert names(a.src) == ["GPU0#x#0"]
    assert names(c.src) == ["CPU#b#0"]
    assert s.assignment.causes[c.src[0]] == "4.cpy"


def test_a_copy_serves_all_later_readers_on_its_backend() -> None:
    null = Null()
    x = inp(4, name="x")
    a = ops.sqr(x).named("a")
    b = ops.sqr(a).named("b")
    c = ops.add(b, x).named("c")
    s = cut(null, Graph(c), {a: 0, b: 1, c: 0})
    assert [x.inputs for x in s.splits] == [[x], [a], [b]]
    assert c.src[1] is a.src[0]


def test_leading_views_belong_to_the_first_split() -> None:
    null = Null()
    x = inp(4)
    node = ops.sqr(ops.view(x, (2,)))
    s = cut(null, Graph(node), {node: 0})
    assert [(x.backend.name, x.i_start, x.i_end) for x in s.splits] == [("GPU0", 0, 2)]


def test_graphs_of_views_and_empty_graphs() -> None:
    null = Null()
    assert spans(cut(null, Graph(ops.view(inp(4), (2,)).named("v")), {})) == [("GPU0", 0, 1, [])]
    assert spans(cut(null, Graph(), {})) == []
    assert spans(cut(null, Graph(inp(4)), {})) == []


def test_a_weight_elsewhere_begins_a_split_once_there_are_inputs() -> None:
    """Then the memory of weights copied earlier can be reused."""
    null = Null()
    w = [weight(null.host, 4, 4, name=f"w{i}") for i in range(3)]
    node, user = leaf(4, name="x"), {}
    for wi in w:
        node = ops.mul_mat(wi, node)
        user[node] = 0
    s = cut(null, Graph(node), user)
    assert spans(s) == [("GPU0", i, i + 1, [f"w{i}"]) for i in range(3)]


def test_a_late_input_begins_a_split() -> None:
    """Then earlier nodes can run before the user writes it."""
    null = Null()
    x, late = inp(4, name="x"), inp(4, name="late").set_late()
    a = ops.sqr(x)
    b = ops.add(a, late)
    c = ops.sqr(b)
    for n_copies in (1, 4):
        s = cut(null, graph := Graph(c), {a: 0, b: 0, c: 0}, n_copies)
        assert spans(s) == [("GPU0", 0, 1, ["x"]), ("GPU0", 1, 3, ["late"])]
        graph.restore()
    s = cut(null, graph := Graph(c), {a: 1, b: 1, c: 1})
    assert spans(s) == [("CPU", 0, 1, []), ("CPU", 1, 3, [])]


def test_no_number_of_inputs_is_too_many() -> None:
    null = Null()
    total, user = inp(4), {}
    for _ in range(500):
        total = ops.add(total, inp(4))
        user[total] = 0
    for n_copies in (1, 4):
        graph = Graph(total)
        s = pass6_graph_inputs(cut(null, graph, user, n_copies))
        assert [len(x.inputs) for x in s.splits] == [501]
        assert len(build_order(s).graph.nodes) == 500 + 2 * 501
        graph.restore()


def test_restore_gives_sources_flags_and_order_back() -> None:
    null = Null()
    x = inp(4, name="x")
    a = ops.sqr(x)
    graph = Graph(a)
    build_order(pass6_graph_inputs(cut(null, graph, {a: 0}, n_copies=4)))
    assert x.flags == INPUT | OUTPUT
    assert a.src[0] is not x
    graph.restore()
    assert x.flags == INPUT
    assert a.src == [x]


# --- several copies ---


def test_pass6_copies_every_input_on_its_own_backend() -> None:
    null = Null()
    x, unread = inp(4, name="x"), inp(4, name="unread")
    a = ops.sqr(x).named("a")
    s = cut(null, Graph(a, unread), {a: 0}, n_copies=4)
    s.copy_index = 2
    s = pass6_graph_inputs(s)
    assert names(s.copies[x, 1]) == ["CPU#x#0", "CPU#x#1", "x", "CPU#x#3"]
    assert names(s.copies[unread, 1]) == ["CPU#unread#0", "CPU#unread#1", "unread", "CPU#unread#3"]
    assert names(s.copies[x, 0]) == [f"GPU0#x#{c}" for c in range(4)]
    assert s.assignment.causes[x] == s.assignment.causes[unread] == "6.cpy"
    assert all(t.flags == INPUT | OUTPUT for copies in s.copies.values() for t in copies)


def test_order_puts_rotating_copies_first() -> None:
    null = Null()
    x = inp(4, name="x")
    a = ops.sqr(x).named("a")
    s = pass6_graph_inputs(cut(null, Graph(a), {a: 0}, n_copies=4))
    order = build_order(s)
    own = ["x", "CPU#x#1", "CPU#x#2", "CPU#x#3"]
    assert names(order.graph.leafs) == [*own, *(f"GPU0#x#{c}" for c in range(4)), "x"]
    assert order.leaf_ids == [1] * 4 + [0] * 4 + [1]
    assert names(order.graph.nodes) == ["x (view)", "GPU0#x#0", "a"]
    assert order.node_ids == [1, 0, 0]


# --- graph_optimize ---


class Optimizing(NullBackend):
    """Performs `action` in graph_optimize."""

    def __init__(self, device: NullDevice, action: Callable[[Graph], Sequence[KeepAlive]]) -> None:
        super().__init__(device)
        self.action = action

    def graph_optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        return self.action(graph)


def optimizing(null: Null, action: Callable[[Graph], Sequence[KeepAlive]]) -> list[Backend]:
    device = null.backends[0].device
    assert isinstance(device, NullDevice)
    return [Optimizing(device, action), *null.backends[1:]]


def test_a_backend_may_reorder_its_split() -> None:
    null = Null()
    a, b = ops.sqr(inp(4)).named("a"), ops.sqr(inp(4)).named("b")
    c = ops.add(a, b).named("c")

    def swap(graph: Graph) -> Sequence[KeepAlive]:
        graph.nodes[0], graph.nodes[1] = graph.nodes[1], graph.nodes[0]
        return ()

    scheduler = Scheduler(optimizing(null, swap))
    for node in (a, b, c):
        scheduler.set_tensor_backend(node, scheduler.backends[0])
    graph = Graph(c)
    scheduled = scheduler.alloc_graph(graph)
    assert names(graph.nodes) == ["b", "a", "c"]
    assert names(scheduled.splits[0].graph.nodes) == ["b", "a", "c"]
    assert names(scheduled.order.graph.nodes)[-3:] == ["b", "a", "c"]
    graph.restore()
    assert names(graph.nodes) == ["a", "b", "c"]


def test_a_backend_may_not_put_a_node_before_its_sources() -> None:
    null = Null()
    b = ops.sqr(ops.sqr(inp(4)).named("a")).named("b")

    def swap(graph: Graph) -> Sequence[KeepAlive]:
        graph.nodes.reverse()
        return ()

    scheduler = Scheduler(optimizing(null, swap))
    graph = Graph(b)
    for node in graph.nodes:
        scheduler.set_tensor_backend(node, scheduler.backends[0])
    with pytest.raises(AssertionError, match=r"GPU0 put b\[4\] F32 before its source a\[4\] F32"):
        scheduler.alloc_graph(graph)
    assert names(graph.nodes) == ["a", "b"]


@pytest.mark.parametrize("n_copies", [1, 4])
def test_a_backend_that_fails_to_optimize_leaves_the_graph_as_it_was(n_copies: int) -> None:
    null = Null()
    x = inp(4, name="x")
    a = ops.sqr(x)

    def fail(graph: Graph) -> Sequence[KeepAlive]:
        raise RuntimeError("broken")

    scheduler = Scheduler(optimizing(null, fail), parallel=n_copies > 1)
    graph = Graph(a)
    for attempt in (scheduler.alloc_graph, scheduler.reserve):
        scheduler.set_tensor_backend(a, scheduler.backends[0])
        with pytest.raises(RuntimeError, match="broken"):
            attempt(graph)
        assert (a.src, x.flags) == ([x], INPUT)


def test_a_tensor_assigned_to_its_reader_s_backend_is_not_copied() -> None:
    """Whatever memory it is in: the user's assignment decides."""
    null = Null()
    w = weight(null.gpu_bufts[0], 4)
    node = ops.sqr(w)
    assert spans(cut(null, Graph(node), {w: 1, node: 1})) == [("CPU", 0, 1, [])]


def test_a_backend_may_not_lose_nodes() -> None:
    null = Null()
    a = ops.sqr(inp(4))

    def drop(graph: Graph) -> Sequence[KeepAlive]:
        graph.nodes.pop()
        return ()

    scheduler = Scheduler(optimizing(null, drop))
    scheduler.set_tensor_backend(a, scheduler.backends[0])
    with pytest.raises(AssertionError, match="GPU0 changed the set of nodes"):
        scheduler.alloc_graph(Graph(a))


def test_tensors_are_kept_alive_until_a_later_node() -> None:
    """A dependency node has up to 10 sources. It follows the last node that needs them."""
    null = Null()
    heads = [ops.sqr(inp(64)).named(f"h{i}") for i in range(12)]
    total = heads[0]
    for h in heads[1:]:
        total = ops.add(total, h)
    last = ops.soft_max(ops.cont(total.named("total"))).named("last")

    def keep(graph: Graph) -> Sequence[KeepAlive]:
        return [KeepAlive(h, until=last) for h in (*heads, *heads)]  # duplicates are allowed

    plain, kept = Scheduler(null.backends), Scheduler(optimizing(null, keep))
    offsets = []
    for scheduler in (plain, kept):
        graph = Graph(last)
        for node in graph.nodes:
            scheduler.set_tensor_backend(node, scheduler.backends[0])
        scheduled = scheduler.alloc_graph(graph)
        offsets.append([h.offset for h in heads] + [last.offset])
        graph.restore()
    order = scheduled.order.graph.nodes
    dependencies = [t for t in order if len(t.src) > 1 and t.op is Op.NONE]
    assert names(dependencies) == ["h0 (view)", "h10 (view)"]
    assert [names(t.src) for t in dependencies] == [names(heads[:10]), names(heads[10:])]
    assert order[-3] is last
    assert order[-2:] == dependencies
    assert len(set(offsets[1])) == len(offsets[1]), "all are alive to the end"
    assert len(set(offsets[0])) < len(offsets[0]), "without KeepAlive memory is reused"


def test_keep_alive_until_a_foreign_node_is_an_assertion() -> None:
    null = Null()
    a = ops.sqr(inp(4)).named("a")
    b = ops.sqr(a).named("b")

    def keep(graph: Graph) -> Sequence[KeepAlive]:
        return [KeepAlive(a, until=b)]

    scheduler = Scheduler(optimizing(null, keep))
    scheduler.set_tensor_backend(a, scheduler.backends[0])
    scheduler.set_tensor_backend(b, scheduler.backends[1])
    with pytest.raises(AssertionError, match="not of its split"):
        scheduler.alloc_graph(Graph(b))


def test_a_bundle_is_copied_once_for_all_its_parts() -> None:
    null = Null()
    whole = inp(16, name="x").set_bundle()
    a, b = (ops.view(whole, (8,), offset=o).named(n) for o, n in ((0, "a"), (32, "b")))
    w = weight(null.gpu_bufts[0], 8, 4, name="w")
    y = ops.add(ops.mul_mat(w, a), ops.mul_mat(w, b))
    scheduled = Scheduler(null.backends).alloc_graph(Graph(y))
    (split,) = [s for s in scheduled.splits if s.inputs]
    assert split.inputs == [whole]
    copy = scheduled.copies[whole, 0][0]
    parts = [node.src[1] for node in split.graph.nodes if node.op is Op.MUL_MAT]
    assert [(p.view_src, p.view_offs, p.ne[0]) for p in parts] == [(copy, 0, 8), (copy, 32, 8)]
    assert [p.offset - copy.offset for p in parts] == [0, 32]
    assert all(p.buffer is copy.buffer for p in parts)
    scheduled.graph.restore()
    assert [node.src[1] for node in split.graph.nodes if node.op is Op.MUL_MAT] == [a, b]
