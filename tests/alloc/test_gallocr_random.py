"""Random graphs over one to three buffer types in small buffers: no live tensor is overwritten.

A simulated run writes each tensor's number to its bytes. Each node must find the numbers of its
sources in their bytes; otherwise they were overwritten.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from memory_types import PaddingBufferType, hold, leaf

from lamella.alloc import Buffer, GraphAllocator
from lamella.graph import INPUT, OUTPUT, GGMLType, Graph, Op, Tensor, ops
from lamella.graph.op import INPLACE_OPS
from lamella.graph.tensor import same_layout, view_tensor

PADDING = {Op.CONT: 24, Op.REPEAT: 100, Op.MUL_MAT: 7}  # of ops that never work in place
N_MAX = 40  # elements
LARGEST = 288  # bytes of the largest tensor, aligned to 32


class Maker:
    """Random choices. They do not depend on `scale`, which scales the sizes of tensors."""

    def __init__(self, seed: int, scale: float = 1) -> None:
        self.rng = random.Random(seed)
        self.scale = scale

    def n_elements(self, at_least: int = 0) -> int:
        n = at_least + int(self.rng.random() * (N_MAX + 1 - at_least))
        return int(n * self.scale)

    def part(self, n: int) -> int:
        """A number up to `n`. Consumes the same amount of randomness for any `n`."""
        return int(self.rng.random() * (n + 1))


Step = Callable[[Maker, Tensor, Tensor], Tensor]


def _computed(op: Op) -> Step:
    """A node of any op and size, of two sources."""

    def step(m: Maker, a: Tensor, b: Tensor) -> Tensor:
        return Tensor(GGMLType.F32, (m.n_elements(),), op=op, src=[a, b])

    return step


def _alike(op: Op) -> Step:
    """A node with the layout of its first or second source, so that it may work in place."""

    def step(m: Maker, a: Tensor, b: Tensor) -> Tensor:
        return Tensor(a.type, a.ne, nb=a.nb, op=op, src=m.rng.sample([a, b], 2))

    return step


def _view(m: Maker, a: Tensor, b: Tensor) -> Tensor:
    n = m.part(a.ne[0])
    return ops.view(a, (n,), offset=4 * m.part(a.ne[0] - n))


def _write(m: Maker, a: Tensor, b: Tensor) -> Tensor:
    """Like CPY: the result is all of `b`."""
    return Tensor(b.type, b.ne, nb=b.nb, op=Op.CPY, src=[a, b], view_src=b)


STEPS: tuple[Step, ...] = (
    *(_alike(op) for op in (Op.ADD, Op.SCALE, Op.SQR, Op.ROPE, Op.SOFT_MAX)),
    *(_alike(op) for op in (Op.CONT, Op.DUP)),
    *(_computed(op) for op in (Op.MUL_MAT, Op.REPEAT, Op.SUM_ROWS, Op.MUL)),
    _view,
    _view,
    _write,
)


def random_graph(m: Maker, n: int, outside: Sequence[Tensor]) -> Graph:
    rng = m.rng
    leafs = [leaf(f"x{i}", m.n_elements()) for i in range(rng.randint(1, 5))]
    for t in leafs:
        t.flags = rng.choice([0, INPUT, INPUT, OUTPUT])
    values = [*leafs, *rng.sample(outside, 2)]
    for i in range(n):
        a, b = (rng.choice(values[-8:]) for _ in range(2))
        values.append(rng.choice(STEPS)(m, a, b).named(f"n{i}"))
        if rng.random() < 0.1:
            values[-1].set_output()
    graph = Graph(*rng.sample(values, 3), values[-1])
    for _ in range(rng.randint(0, 3)):  # dependencies, which keep another tensor alive
        i = rng.randrange(len(graph.nodes))
        # a dependency has no data, so none may depend on it
        kept = rng.choice([*graph.leafs, *(t for t in graph.nodes[: i + 1] if t.op is not Op.NONE)])
        dependency = view_tensor(kept)
        dependency.src = [kept]
        graph.nodes.insert(rng.randint(i + 1, len(graph.nodes)), dependency)
    return graph


class NamedMemory:
    """All buffers; each byte holds the number of the tensor that was last written there."""

    def __init__(self) -> None:
        self._bytes: dict[Buffer, npt.NDArray[np.int64]] = {}
        self._numbers: dict[Tensor, int] = {}

    def _lies_at(self, t: Tensor) -> npt.NDArray[np.int64]:
        if t.buffer not in self._bytes:
            self._bytes[t.buffer] = np.zeros(t.buffer.size, np.int64)
        return self._bytes[t.buffer][t.offset : t.offset + t.nbytes]

    def write(self, t: Tensor) -> None:
        """Write all bytes that the tensor may use, padding of the buffer type included."""
        whole = self._lies_at(t.root)
        extra = t.buffer.buft.get_alloc_size(t.root) - t.root.nbytes
        memory = self._bytes[t.buffer][t.root.offset : t.root.offset + whole.size + extra]
        memory[:] = self._numbers.setdefault(t.root, len(self._numbers) + 1)

    def check(self, t: Tensor, reader: object) -> None:
        own = self._numbers.setdefault(t.root, len(self._numbers) + 1)
        assert (self._lies_at(t) == own).all(), f"{t} was overwritten before {reader} read it"


def check_run(graph: Graph, outside: Sequence[Tensor]) -> None:
    memory = NamedMemory()
    for t in (*outside, *graph.leafs):
        memory.write(t)
    for node in graph.nodes:
        for src in node.src:
            memory.check(src, node)
            assert may_be_written(node, src), f"{node} writes over {src} while it reads it"
        if node.view_src is None or node.op is Op.CPY:
            memory.write(node)
    for t in (*outside, *(t for t in (*graph.leafs, *graph.nodes) if t.flags & OUTPUT)):
        memory.check(t, "the user")


def may_be_written(node: Tensor, src: Tensor) -> bool:
    """True if the node may write to its source's memory: only if both have the same place."""
    apart = (
        not (node.nbytes and src.nbytes)
        or node.buffer is not src.buffer
        or node.offset + node.nbytes <= src.offset
        or src.offset + src.nbytes <= node.offset
    )
    if apart or node.root is src.root:
        return True
    return node.op in INPLACE_OPS and node.offset == src.offset and same_layout(node, src)


def check_places(graph: Graph, galloc: GraphAllocator, outside: Sequence[Tensor]) -> None:
    buffers = {b for chunks in galloc.buffers for b in chunks} | {t.buffer for t in outside}
    for t in (*graph.leafs, *graph.nodes):
        assert t.buffer in buffers
        if t.view_src is not None:
            assert (t.buffer, t.offset) == (t.root.buffer, t.root.offset + t.view_offs)
            continue
        assert t.offset % t.buffer.buft.alignment == 0
        assert t.offset + t.buffer.buft.get_alloc_size(t) <= t.buffer.size
    for chunks in galloc.buffers:
        assert len(chunks) <= 16
        assert all(b.size <= max(b.buft.max_size, LARGEST) for b in chunks[:15])


def random_memory(rng: random.Random, n_types: int) -> list[PaddingBufferType]:
    return [
        PaddingBufferType(
            PADDING,
            alignment=rng.choice([8, 16, 32]),
            max_size=rng.choice([64, 200, 512, 4096]),
        )
        for _ in range(n_types)
    ]


def random_ids(rng: random.Random, graph: Graph, n_bufts: int) -> tuple[list[int], list[int]]:
    node_ids, leaf_ids = ([rng.randrange(n_bufts) for _ in t] for t in (graph.nodes, graph.leafs))
    return node_ids, leaf_ids


def outside_tensors(m: Maker) -> list[Tensor]:
    """Tensors flagged as outputs: nodes in place must not overwrite them."""
    return [leaf(f"w{i}", m.n_elements(at_least=1)).set_output() for i in range(3)]


@pytest.mark.parametrize("n_types", [1, 2, 3])
@pytest.mark.parametrize("seed", range(25))
def test_no_two_live_tensors_overlap(seed: int, n_types: int) -> None:
    """For several graphs, placed one after the other over the same buffers."""
    m = Maker(seed)
    types = random_memory(m.rng, n_types)
    bufts = [*types, m.rng.choice(types)]  # one of them twice
    galloc = GraphAllocator(bufts)
    outside = outside_tensors(m)
    kept = [hold(t, types[0]) for t in outside]
    for _ in range(4):
        graph = random_graph(m, m.rng.randint(1, 60), outside)
        ids = random_ids(m.rng, graph, len(bufts))
        galloc.reserve(graph, *ids)
        galloc.alloc_graph(graph)
        assert galloc.layout is not None
        for chunks, wanted in zip(galloc.buffers, galloc.layout.chunk_sizes, strict=True):
            assert [max(b.size, n) for b, n in zip(chunks, wanted, strict=False)] == [
                b.size for b in chunks[: len(wanted)]
            ]
        check_places(graph, galloc, outside)
        check_run(graph, outside)
    galloc.free()
    for buffer in kept:
        buffer.free()
    assert [b.used for b in types] == [0] * n_types


@pytest.mark.parametrize("n_types", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_no_two_live_tensors_overlap_in_a_larger_graph_s_layout(seed: int, n_types: int) -> None:
    """A graph of the same wiring with fewer bytes is placed by the plan of the larger one."""
    types = random_memory(random.Random(seed), n_types)
    galloc = GraphAllocator(types)
    for scale in (1, 0.6, 0.1):
        m = Maker(seed, scale)
        outside = outside_tensors(m)
        kept = [hold(t) for t in outside]
        graph = random_graph(m, 40, outside)
        if scale == 1:
            galloc.reserve(graph, *random_ids(m.rng, graph, n_types))
        if galloc.needs_realloc(graph):
            continue  # in place by chance at full size: the layouts differ here
        galloc.alloc_graph(graph)
        assert galloc.generations == [0] * n_types
        check_places(graph, galloc, outside)
        check_run(graph, outside)
        assert len(kept) == 3


def test_the_random_graphs_cover_enough() -> None:
    """Nodes work in place, views are read, several chunks are needed and memory is used again."""
    n_inplace = n_chunks = n_reused = n_fitting = n_views_read = n_outputs_read = 0
    for seed in range(25):
        outside = outside_tensors(Maker(seed))
        kept = [hold(t) for t in outside]
        m = Maker(seed)
        graph = random_graph(m, 60, outside)
        galloc = GraphAllocator([PaddingBufferType(PADDING, max_size=200)])
        galloc.alloc_graph(graph)
        layout = galloc.layout
        assert layout is not None
        n_inplace += len(layout.inplace)
        n_chunks = max(n_chunks, len(layout.chunk_sizes[0]))
        addresses = [a for a in (*layout.leafs, *layout.nodes) if a is not None]
        n_reused += sum(a.size for a in addresses) > 1.5 * sum(layout.chunk_sizes[0])
        read = {src for node in graph.nodes for src in node.src if src.view_src is not None}
        n_views_read += len(read)
        n_outputs_read += sum(t.flags & OUTPUT != 0 for t in read)
        smaller = random_graph(Maker(seed, 0.6), 60, outside)
        n_fitting += not galloc.needs_realloc(smaller)
        assert len(kept) == 3
    assert min(n_inplace, n_views_read) > 100
    assert n_chunks > 4
    assert min(n_reused, n_fitting) > 10
    assert n_outputs_read > 5
