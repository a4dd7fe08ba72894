"""The graph allocator: reserving, placing, and when a graph must be planned again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from memory_types import BareBuffer, BareBufferType, PaddingBufferType, hold, leaf

from lamella.alloc import GraphAllocator, HostBufferType, Usage
from lamella.base.errors import OutOfMemoryError, ReserveError
from lamella.graph import GGMLType, Graph, Op, Tensor, ops


def host(name: str = "A", **limits: int) -> HostBufferType:
    return HostBufferType(name, alignment=16, **limits)


def chain(n: int, length: int = 3) -> Graph:
    """A leaf of `n` floats and nodes that never work in place: two tensors live at a time."""
    t = leaf("x", n)
    for _ in range(length):
        t = ops.cont(t)
    return Graph(t)


def is_placed(graph: Graph) -> bool:
    return all(t.buffer is not None for t in (*graph.leafs, *graph.nodes))


def is_untouched(graph: Graph) -> bool:
    return not any(t.buffer is not None or t.offset for t in (*graph.leafs, *graph.nodes))


# --- reserving ---


def test_reserve_computes_the_layout() -> None:
    bufts = [host("A", max_size=64), host("B")]
    galloc, graph = GraphAllocator(bufts), chain(12, 5)
    galloc.reserve(graph, [0, 1, 0, 1, 0], [1])
    assert galloc.layout is not None
    sizes = galloc.layout.chunk_sizes
    assert [[b.size for b in chunks] for chunks in galloc.buffers] == sizes
    assert galloc.buffer_sizes() == [sum(chunks) for chunks in sizes]
    assert all(sizes)
    assert is_untouched(graph)


def test_every_tensor_lives_in_the_type_of_its_id() -> None:
    a, b, c = host("A"), host("B"), host("C")
    galloc = GraphAllocator([a, b, c])
    x, w = leaf("x", 4), leaf("w", 4)
    first = ops.cont(x)
    graph = Graph(ops.concat(first, w, 0))
    galloc.reserve(graph, node_ids=[2, 1], leaf_ids=[0, 2])
    galloc.alloc_graph(graph)
    assert [t.buffer.buft for t in (x, w, *graph.nodes)] == [a, c, c, b]
    assert galloc.buffer_sizes() == [16, 32, 32]


def test_without_ids_everything_lives_in_the_first_type() -> None:
    galloc, graph = GraphAllocator([host("A"), host("B")]), chain(4)
    galloc.reserve(graph)
    assert galloc.buffer_sizes() == [32, 0]


def test_a_type_used_twice_shares_one_buffer() -> None:
    a, b = host("A"), host("B")
    galloc = GraphAllocator([b, a, b, a])
    x = leaf("x", 4)
    first, second = ops.cont(x), ops.repeat(leaf("y", 4), (8,))
    graph = Graph(first, second)
    galloc.reserve(graph, node_ids=[3, 1], leaf_ids=[1, 3])
    galloc.alloc_graph(graph)
    assert len({t.buffer for t in (*graph.leafs, *graph.nodes)}) == 1
    assert [len(chunks) for chunks in galloc.buffers] == [0, 1, 0, 0]
    # planned together: the second node cannot have the first one's place
    assert [t.offset for t in (*graph.leafs, *graph.nodes)] == [0, 16, 32, 48]
    assert galloc.buffer_sizes() == [0, 80, 0, 0]
    assert a.used == 80


def test_compute_buffers_are_marked() -> None:
    galloc = GraphAllocator([host(max_size=32)])
    galloc.reserve(chain(8))
    assert {b.usage for b in galloc.buffers[0]} == {Usage.COMPUTE}
    assert len(galloc.buffers[0]) == 2


def test_a_type_without_tensors_needs_no_buffer() -> None:
    w = leaf("w", 4)
    kept = hold(w)
    galloc = GraphAllocator([host()])
    view = ops.view(w, (2,), offset=8)
    galloc.alloc_graph(Graph(view))
    assert (view.buffer, view.offset) == (kept, 8)
    assert galloc.buffer_sizes() == [0]


def test_tensors_without_elements_are_placed() -> None:
    galloc = GraphAllocator([host()])
    graph = Graph(ops.scale(leaf("x", 4, 0), 2))
    galloc.alloc_graph(graph)
    assert is_placed(graph)
    assert galloc.buffer_sizes() == [0]
    assert not galloc.needs_realloc(Graph(ops.scale(leaf("x", 8, 0), 2)))


def test_freeing_releases_everything() -> None:
    bufts = [host("A", max_size=32), host("B")]
    galloc, graph = GraphAllocator(bufts), chain(8)
    galloc.reserve(graph, [0, 1, 0], [0])
    galloc.free()
    assert [b.used for b in bufts] == [0, 0]
    assert galloc.layout is None
    assert galloc.needs_realloc(graph)
    galloc.free()  # twice is fine
    galloc.reserve(graph, [0, 1, 0], [0])
    assert galloc.buffer_sizes() == [64, 32]


# --- placing ---


def test_a_graph_is_placed_as_planned() -> None:
    galloc, graph = GraphAllocator([host()]), chain(4)
    placed = galloc.alloc_graph(graph)
    assert placed == [*graph.leafs, *graph.nodes]
    assert {t.buffer for t in placed} == {galloc.buffers[0][0]}
    assert [t.offset for t in placed] == [0, 16, 0, 16]


def test_only_tensors_without_a_place_get_one() -> None:
    galloc = GraphAllocator([host()])
    w = leaf("w", 4)
    kept = hold(w)
    view, node = ops.view(w, (4,)), ops.add(leaf("x", 4), w)
    graph = Graph(view, node)
    assert galloc.alloc_graph(graph) == [node.src[0], view, node]
    assert w.buffer is kept
    assert galloc.alloc_graph(graph) == []  # all have one now


def test_every_tensor_is_initialized_once() -> None:
    buft = BareBufferType()
    x = leaf("x", 4)
    view = ops.view(ops.cont(x), (2,))
    galloc = GraphAllocator([buft])
    galloc.alloc_graph(Graph(view))
    assert buft.buffers[0].initialized == [x, view.src[0], view]


class Stubborn(BareBuffer):
    """Fails to initialize views."""

    def init_tensor(self, tensor: Tensor) -> None:
        if tensor.view_src is not None:
            raise ValueError(tensor.name)


class StubbornType(BareBufferType):
    def _alloc(self, size: int) -> BareBuffer:
        return Stubborn(self, size)


def test_a_failed_placement_is_undone() -> None:
    galloc = GraphAllocator([StubbornType()])
    graph = Graph(ops.scale(ops.view(ops.cont(leaf("x", 4)), (2,)), 2))
    with pytest.raises(ValueError, match="node_1"):
        galloc.alloc_graph(graph)
    assert is_untouched(graph)


def test_a_placed_graph_stays_next_to_later_ones() -> None:
    galloc = GraphAllocator([host()])
    first, second = chain(8), chain(4, 5)
    galloc.alloc_graph(first)
    before = [(t.buffer, t.offset) for t in first.nodes]
    galloc.alloc_graph(second)
    assert [(t.buffer, t.offset) for t in first.nodes] == before
    assert galloc.generations == [0]
    assert not first.nodes[0].buffer.freed


def test_several_types_are_not_reserved_by_themselves() -> None:
    """The buffer type of each tensor is unknown."""
    galloc, graph = GraphAllocator([host("A"), host("B")]), chain(4)
    with pytest.raises(ReserveError, match=r"3 nodes and 1 leafs .* over 2 buffer types"):
        galloc.alloc_graph(graph)
    assert is_untouched(graph)
    galloc.reserve(graph, [0, 1, 0], [1])
    galloc.alloc_graph(graph)
    assert is_placed(graph)
    larger = chain(5)
    with pytest.raises(ReserveError, match=f"graph {larger.uid} "):
        galloc.alloc_graph(larger)
    assert is_untouched(larger)
    galloc.alloc_graph(chain(4))  # what fits still fits


def test_one_type_is_reserved_by_itself() -> None:
    """Even if it is given twice."""
    buft = host()
    galloc = GraphAllocator([buft, buft])
    for n in (4, 2, 100):
        graph = chain(n)
        galloc.alloc_graph(graph)
        assert is_placed(graph)
    assert galloc.buffer_sizes() == [800, 0]


# --- when a graph must be planned again ---


def net(
    n: int = 8,
    *,
    op: Callable[[Tensor], Tensor] = ops.sqr,
    source: int = 0,
    flags: int = 0,
    kept: bool = False,
    more: Callable[[Tensor], Tensor] = lambda t: t,
) -> Graph:
    """Two leafs; a node in place, one that copies, one of both. Arguments change details."""
    x, w = leaf("x", n), leaf("w", n)
    if kept:
        kept_alive.append(hold(w))
    first = op(x)
    first.flags |= flags
    second = ops.dup((first, w)[source])
    return Graph(more(ops.add(second, w if source == 0 else first)))


kept_alive: list[object] = []  # buffers of tensors outside of the graph's memory


SAME = {
    "the same again": net(),
    "fewer bytes": net(5),
    "a leaf is outside": net(kept=True),
}
OTHER = {
    "more bytes": net(9),
    "another op": net(op=ops.sqrt),
    "other wiring": net(source=1),
    "other flags": net(flags=2),
    "more nodes": net(more=ops.cont),
    "more leafs": net(more=lambda t: ops.cpy(t, leaf("y", 8))),
    "another view": net(op=lambda x: ops.sqr(ops.view(x, (8,)))),
}


@pytest.mark.parametrize("name", SAME)
def test_a_graph_that_fits_is_placed_at_once(name: str) -> None:
    galloc, graph = GraphAllocator([host()]), SAME[name]
    galloc.reserve(net())
    layout = galloc.layout
    assert not galloc.needs_realloc(graph)
    galloc.alloc_graph(graph)
    assert galloc.layout is layout
    assert is_placed(graph)


@pytest.mark.parametrize("name", OTHER)
def test_a_graph_that_differs_is_planned_again(name: str) -> None:
    galloc, graph = GraphAllocator([host()]), OTHER[name]
    galloc.reserve(net())
    layout = galloc.layout
    assert galloc.needs_realloc(graph)
    galloc.alloc_graph(graph)
    assert galloc.layout is not layout
    assert not galloc.needs_realloc(graph)


def test_other_wiring_of_as_many_tensors_gets_other_places() -> None:
    """The same number of nodes and leafs, of the same sizes and ops, but longer lifetimes."""

    def graph(source: int) -> Graph:
        a = ops.cont(leaf("x", 4))
        b = ops.cont(a)
        c = ops.cont(b)
        return Graph(ops.concat((b, a)[source], c, 0))

    galloc = GraphAllocator([host()])
    short, long = graph(0), graph(1)
    galloc.alloc_graph(short)
    galloc.alloc_graph(long)
    assert [t.offset for t in short.nodes] == [16, 0, 16, 32]
    assert [t.offset for t in long.nodes] == [16, 0, 32, 48]


def test_a_graph_with_memory_outside_does_not_fit_one_without() -> None:
    galloc = GraphAllocator([host()])
    galloc.reserve(net(kept=True))
    assert not galloc.needs_realloc(net(kept=True))
    assert galloc.needs_realloc(net())  # there is no place for the leaf


def test_a_larger_leaf_is_noticed_even_without_a_reader() -> None:
    galloc = GraphAllocator([host()])
    galloc.reserve(Graph(leaf("x", 4)))
    assert not galloc.needs_realloc(Graph(leaf("x", 4)))
    assert galloc.needs_realloc(Graph(leaf("x", 5)))


def test_a_node_planned_in_place_must_still_fit_in_place() -> None:
    """Fewer bytes and the same wiring, but now a node has other strides than its source."""
    galloc = GraphAllocator([host()])
    galloc.reserve(Graph(ops.sqr(leaf("x", 2, 5))))
    assert not galloc.needs_realloc(Graph(ops.sqr(leaf("x", 2, 3))))
    gappy = Tensor(GGMLType.F32, (2, 3), name="x", nb=(4, 12, 36, 36))
    assert gappy.nbytes < 40
    assert galloc.needs_realloc(Graph(ops.sqr(gappy)))


def test_padding_of_the_type_counts() -> None:
    buft = PaddingBufferType({})
    galloc = GraphAllocator([buft])
    galloc.reserve(net(8))
    assert not galloc.needs_realloc(net(7))
    buft.padding[Op.DUP] = 5  # 28 + 5 bytes
    assert galloc.needs_realloc(net(7))


def test_other_ids_need_another_layout() -> None:
    a, b = host("A"), host("B")
    galloc, graph = GraphAllocator([a, b, a]), chain(4)
    assert galloc.needs_realloc(graph, [0, 0, 0], [0])  # nothing is reserved
    galloc.reserve(graph, [0, 1, 0], [0])
    assert not galloc.needs_realloc(graph, [0, 1, 0], [0])
    assert not galloc.needs_realloc(graph, [2, 1, 0], [2])  # the same types
    assert not galloc.needs_realloc(graph)  # whatever their types
    assert galloc.needs_realloc(graph, [0, 0, 0], [0])
    assert galloc.needs_realloc(graph, [0, 1, 0], [1])
    assert galloc.needs_realloc(graph, leaf_ids=[1])


# --- growing ---


def test_generations_change_exactly_when_buffers_grow() -> None:
    galloc = GraphAllocator([host()])
    seen = []
    for n in (4, 4, 3, 8, 4, 8, 9):
        galloc.alloc_graph(chain(n))
        seen.append((galloc.generations[0], galloc.buffer_sizes()[0]))
    assert seen == [(0, 32), (0, 32), (0, 32), (1, 64), (1, 64), (1, 64), (2, 96)]


def test_only_the_buffer_that_grows_moves() -> None:
    galloc = GraphAllocator([host("A"), host("B")])
    x, y = leaf("x", 4), leaf("y", 4)
    galloc.reserve(Graph(x, y), leaf_ids=[0, 1])
    kept, moved = galloc.buffers[0][0], galloc.buffers[1][0]
    larger = leaf("y", 8)
    galloc.reserve(Graph(x, larger), leaf_ids=[0, 1])
    assert galloc.generations == [0, 1]
    assert galloc.buffers[0] == [kept]
    assert (kept.freed, moved.freed) == (False, True)


def test_reserving_less_keeps_the_buffers() -> None:
    galloc = GraphAllocator([host(max_size=64)])
    galloc.reserve(chain(16))
    before = list(galloc.buffers[0])
    galloc.reserve(chain(4))
    assert galloc.buffers[0] == before
    assert galloc.generations == [0]
    galloc.alloc_graph(chain(4))
    galloc.alloc_graph(chain(16))  # must be planned again, but needs no growth
    assert galloc.buffers[0] == before


def test_no_chunk_shrinks_when_another_grows() -> None:
    """Otherwise graphs that alternate would make each other grow forever."""
    galloc = GraphAllocator([host(max_size=64)])

    def sizes() -> list[int]:
        return [b.size for b in galloc.buffers[0]]

    galloc.reserve(Graph(leaf("x", 16), leaf("y", 4)))
    assert sizes() == [64, 16]
    galloc.reserve(Graph(leaf("x", 8), leaf("y", 12)))
    assert sizes() == [64, 48]
    galloc.reserve(Graph(leaf("x", 12), leaf("y", 12), leaf("z", 16)))
    assert sizes() == [64, 48, 64]
    assert galloc.generations == [2]
    for graph in (Graph(leaf("x", 16), leaf("y", 4)), Graph(leaf("x", 8), leaf("y", 12))):
        galloc.reserve(graph)
    assert galloc.generations == [2]


def test_old_buffers_are_freed_before_new_ones_are_allocated() -> None:
    """Both together may exceed the memory."""
    buft = host(capacity=100)
    galloc = GraphAllocator([buft])
    galloc.reserve(Graph(leaf("x", 16)))
    galloc.reserve(Graph(leaf("x", 20)))
    assert buft.used == 80


# --- out of memory ---


def test_out_of_memory_raises_an_error() -> None:
    buft = host("MEM", capacity=100)
    galloc = GraphAllocator([buft])
    galloc.alloc_graph(chain(4))
    too_large = chain(16)
    with pytest.raises(OutOfMemoryError, match="MEM cannot allocate 128 bytes, 100 bytes are free"):
        galloc.alloc_graph(too_large)
    assert is_untouched(too_large)
    assert (buft.used, galloc.generations) == (0, [1])  # its tensors must be placed again
    assert galloc.needs_realloc(chain(4))  # its place is gone too
    again = chain(12)
    galloc.alloc_graph(again)
    assert is_placed(again)
    assert buft.used == 96


def test_out_of_memory_halfway_frees_all_chunks() -> None:
    buft = host(max_size=32, capacity=80)
    galloc = GraphAllocator([buft])
    with pytest.raises(OutOfMemoryError, match="16 bytes are free"):
        galloc.reserve(Graph(leaf("x", 8), leaf("y", 8), leaf("z", 8)))
    assert (buft.used, galloc.buffers, galloc.layout) == (0, [[]], None)
    galloc.reserve(chain(8))
    assert buft.used == 64


def test_out_of_memory_of_one_type_keeps_the_others() -> None:
    bufts = [host("A"), host("SMALL", capacity=50), host("C")]
    galloc = GraphAllocator(bufts)
    leafs = [leaf("x", 4), leaf("y", 4), leaf("z", 4)]
    galloc.reserve(Graph(*leafs), leaf_ids=[0, 1, 2])
    kept = [galloc.buffers[0][0], galloc.buffers[2][0]]
    larger = Graph(leaf("x", 4), leaf("y", 16), leaf("z", 4))
    with pytest.raises(OutOfMemoryError, match="SMALL cannot allocate 64 bytes"):
        galloc.reserve(larger, leaf_ids=[0, 1, 2])
    assert [b.used for b in bufts] == [16, 0, 16]
    assert [galloc.buffers[0][0], galloc.buffers[2][0]] == kept
    assert galloc.generations == [0, 1, 0]
    with pytest.raises(ReserveError):
        galloc.alloc_graph(larger)
    galloc.reserve(larger, leaf_ids=[0, 2, 2])
    galloc.alloc_graph(larger)
    assert is_placed(larger)
