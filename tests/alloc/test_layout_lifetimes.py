"""How long a tensor keeps its memory: sources, views, outputs, inputs and dependencies.

Every tensor has 4 floats, 16 bytes, unless stated otherwise; the alignment is 16. `cont`, `dup` and
`repeat` never work in place.
"""

from __future__ import annotations

from memory_types import allocated, hold, leaf

from lamella.alloc import GraphAllocator, HostBufferType
from lamella.graph import Graph, Tensor, ops
from lamella.graph.tensor import view_tensor


def offsets(*tensors: Tensor) -> list[int]:
    return [t.offset for t in tensors]


def alloc(graph: Graph) -> GraphAllocator:
    galloc = GraphAllocator([HostBufferType(alignment=16)])
    galloc.alloc_graph(graph)
    return galloc


def test_sources_are_freed_after_their_last_use() -> None:
    x = leaf("x", 4)
    a = ops.cont(x)
    b = ops.cont(a)  # where x was
    c = ops.cont(b)  # where a was
    galloc = allocated(c)
    assert offsets(x, a, b, c) == [0, 16, 0, 16]
    assert galloc.buffer_sizes() == [32]


def test_a_source_is_not_freed_before_its_last_use() -> None:
    x = leaf("x", 4)
    a = ops.cont(x)
    b = ops.cont(a)
    c = ops.concat(a, ops.cont(b), 0)
    galloc = allocated(c)
    assert offsets(x, a, b, c.src[1], c) == [0, 16, 0, 32, 48]
    assert galloc.buffer_sizes() == [80]


def test_a_source_used_twice_by_one_node_is_freed_once() -> None:
    x = leaf("x", 4)
    a = ops.cont(x)
    b = ops.concat(a, a, 0)  # [32, 64)
    galloc = allocated(ops.cont(b))  # 32 bytes: [0, 32)
    assert galloc.buffer_sizes() == [64]


def test_a_node_without_readers_keeps_its_memory() -> None:
    """It is in the graph because the user reads it."""
    x = leaf("x", 4)
    result = ops.cont(x)
    later = ops.cont(ops.cont(leaf("y", 4)))
    galloc = allocated(result, later)
    assert result.offset not in offsets(later, later.src[0])
    assert len(galloc.buffer_sizes()) == 1


def test_leafs_have_places_before_all_nodes() -> None:
    """Even one that is read last or never: the user may write it before the run."""
    x, late, unread = leaf("x", 4), leaf("late", 4), leaf("unread", 4)
    chain = ops.cont(ops.cont(x))
    galloc = allocated(unread, ops.concat(chain, late, 0))
    places = offsets(unread, x, late)
    assert places == [0, 16, 32]
    assert not {0, 32} & set(offsets(chain, chain.src[0]))
    assert len(galloc.buffer_sizes()) == 1


# --- outputs and inputs ---


def test_outputs_are_never_freed() -> None:
    x = leaf("x", 4).set_output()
    a = ops.cont(x).set_output()
    b = ops.cont(a)
    c = ops.cont(b)
    d = ops.cont(c)
    galloc = allocated(d)
    assert offsets(x, a, b, c, d) == [0, 16, 32, 48, 32]
    assert galloc.buffer_sizes() == [64]


def test_an_output_that_is_a_view_keeps_its_source() -> None:
    x = leaf("x", 4)
    a = ops.cont(x)
    view = ops.reshape(a, (2, 2)).set_output()
    c = ops.cont(ops.cont(ops.cont(leaf("y", 4))))
    galloc = allocated(view, c)
    assert a.offset not in offsets(c, c.src[0], c.src[0].src[0])
    assert len(galloc.buffer_sizes()) == 1


def test_an_output_that_is_a_view_keeps_its_source_after_its_last_reader() -> None:
    x = leaf("x", 4)
    a = ops.cont(x)
    view = ops.reshape(a, (2, 2)).set_output()
    b = ops.cont(view)
    c = ops.cont(b)
    galloc = allocated(c)
    assert a.offset not in offsets(b, c)
    assert len(galloc.buffer_sizes()) == 1


def test_an_output_that_is_a_view_is_not_overwritten_in_place() -> None:
    """Even if the source has no other reader left."""
    a = ops.cont(leaf("x", 4))
    view = ops.reshape(a, (2, 2)).set_output()
    reader = ops.cont(view)
    node = ops.scale(a, 2)
    galloc = allocated(reader, node)
    assert node.offset != a.offset
    assert len(galloc.buffer_sizes()) == 1


def test_an_input_has_its_place_before_what_could_overwrite_it() -> None:
    """Even if it is a late node: no earlier tensor may have its place."""
    x = leaf("x", 4)
    before = ops.cont(ops.cont(ops.cont(x)))
    late = ops.cont(before).set_input()
    galloc = allocated(late)
    assert late.offset not in offsets(before, before.src[0], before.src[0].src[0])
    assert len(galloc.buffer_sizes()) == 1


def test_without_the_flag_it_shares_that_place() -> None:
    x = leaf("x", 4)
    before = ops.cont(ops.cont(ops.cont(x)))
    late = ops.cont(before)
    galloc = allocated(late)
    assert late.offset in offsets(before.src[0], before.src[0].src[0])
    assert len(galloc.buffer_sizes()) == 1


# --- views ---


def test_views_take_no_memory() -> None:
    x = leaf("x", 4, 4)
    view = ops.view(ops.transpose(ops.reshape(x, (2, 8))), (2,), offset=8)
    galloc = allocated(ops.sum_rows(ops.cont(view)))
    assert (view.buffer, view.offset) == (x.buffer, 8)
    assert galloc.buffer_sizes() == [64 + 16]  # the sum is where x was


def test_a_source_lives_as_long_as_its_views_are_read() -> None:
    x = leaf("x", 4)
    a = ops.cont(x)
    view = ops.view(a, (4,))
    b = ops.cont(leaf("y", 4))
    c = ops.cont(b)
    last = ops.concat(view, c, 0)
    end = ops.cont(last)
    galloc = allocated(view, end)
    assert a.offset not in offsets(b, c, last)
    assert len(galloc.buffer_sizes()) == 1


def test_a_source_is_freed_after_the_last_reader_of_a_view() -> None:
    x = leaf("x", 4)
    a = ops.cont(x)  # [16, 32)
    b = ops.cont(ops.view(ops.view(a, (4,)), (4,)))  # where x was; a view of a view counts too
    c = ops.cont(b)  # where a was
    galloc = allocated(c)
    assert offsets(a, b, c) == [16, 0, 16]
    assert galloc.buffer_sizes() == [32]


def test_a_view_that_is_read_twice_counts_once() -> None:
    x = leaf("x", 4)
    a = ops.cont(x)
    view = ops.view(a, (4,))
    b = ops.cont(view)  # where x was
    c = ops.concat(view, b, 0)  # [32, 64); then [0, 32) is free
    galloc = allocated(ops.cont(c))
    assert offsets(a, b, c) == [16, 0, 32]
    assert galloc.buffer_sizes() == [64]


def test_a_node_that_writes_into_a_tensor_is_a_view_of_it() -> None:
    """CPY and SET_ROWS: a reader of their result reads the tensor."""
    x, y = leaf("x", 4), leaf("y", 4)
    target = ops.cont(y)
    copied = ops.cpy(x, target)
    b = ops.cont(ops.cont(leaf("z", 4)))
    end = ops.concat(copied, b, 0)
    galloc = allocated(copied, end)
    assert (copied.buffer, copied.offset) == (target.buffer, target.offset)
    assert target.offset not in offsets(b, b.src[0], end)
    assert len(galloc.buffer_sizes()) == 1


def test_a_view_of_memory_outside_frees_nothing() -> None:
    w = leaf("w", 4)
    kept = hold(w)
    view = ops.view(w, (4,))
    galloc = allocated(ops.cont(ops.cont(view)))
    assert (view.buffer, view.offset) == (kept, 0)
    assert galloc.buffer_sizes() == [32]


# --- dependencies: nodes without an op, which only keep their sources alive ---


def chain_with_dependency(behind: int) -> tuple[Tensor, list[Tensor]]:
    """x -> a -> b -> c -> d, and after one of them a dependency that keeps `a` alive."""
    x = leaf("x", 4)
    chain = [ops.cont(x)]
    for _ in range(3):
        chain.append(ops.cont(chain[-1]))
    graph = Graph(chain[-1])
    keep = view_tensor(chain[0], "keep")
    keep.src = [chain[0]]
    graph.nodes.insert(behind + 1, keep)
    alloc(graph).free()
    return chain[0], chain[1:]


def test_a_dependency_keeps_its_source_alive() -> None:
    a, (b, c, d) = chain_with_dependency(behind=3)
    assert offsets(a, b, c, d) == [16, 0, 32, 0]


def test_a_dependency_keeps_nothing_longer_than_itself() -> None:
    """A dependency is a view without a reader, and does not count as a view."""
    a, (b, c, d) = chain_with_dependency(behind=1)
    assert offsets(a, b, c, d) == [16, 0, 16, 0]
