"""Graphs as JSON: a decoded graph computes the same as the one that was sent."""

from __future__ import annotations

import json

import pytest
from op_case import OpCase
from op_cases import op_cases

from lamella.alloc import HostBufferType, alloc_tensors, tensor_set
from lamella.alloc.buffer import Buffer
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.remote.graphs import BufferReference, decode_graph, encode_graph


def one_of_each_op() -> list[OpCase]:
    found: dict[str, OpCase] = {}
    for case in op_cases():
        if not case.timed:
            found.setdefault(case.name.split()[0].split("_")[0], case)
    return list(found.values())


class Buffers:
    """Numbers for buffers."""

    def __init__(self) -> None:
        self.known: list[Buffer] = []

    def reference_of(self, buffer: Buffer) -> BufferReference:
        found = (i for i, known in enumerate(self.known) if known is buffer)
        i = next(found, len(self.known))
        self.known[i:] = self.known[i:] or [buffer]
        return BufferReference(i, 0, buffer.size)

    def buffer_of(self, reference: BufferReference) -> Buffer:
        return self.known[reference.id]


def sent(graph: Graph, buffers: Buffers) -> tuple[Graph, list[Tensor]]:
    encoded = encode_graph(graph, buffers.reference_of)
    return decode_graph(json.loads(json.dumps(encoded.json)), buffers.buffer_of)


@pytest.mark.parametrize("case", one_of_each_op(), ids=str)
def test_a_node_of_each_op_arrives_unchanged(case: OpCase) -> None:
    node = case.node()
    buffers = Buffers()
    graph, _ = sent(Graph(node), buffers)
    found = graph.nodes[-1]
    for a, b in zip((node, *node.src), (found, *found.src), strict=True):
        for field in ("op", "params", "type", "ne", "nb", "nbytes", "name", "flags", "offset"):
            assert getattr(a, field) == getattr(b, field), field
        assert a.params is None or type(a.params) is type(b.params)
        assert (a.view_src is None) == (b.view_src is None)
        assert a.buffer is None or a.buffer is b.buffer
    if node.params is not None:  # enums stay enums
        for x, y in zip(node.params, found.params or (), strict=True):
            assert type(x) is type(y)


def test_views_share_their_source_and_uses_are_those_of_the_whole_graph() -> None:
    x = Tensor(GGMLType.F32, (8, 4), name="x")
    head = ops.view(x, (4, 4), nb=x.nb[:2], offset=16)
    y = ops.add(head, head)
    z = ops.mul(y, ops.reshape(y, (4, 4)))
    alloc_tensors([x], HostBufferType("CPU"))
    whole = Graph(z)
    part = whole.view(0, 2)  # the view and the sum
    graph, tensors = sent(part, Buffers())
    view, add = graph.nodes
    assert add.src == [view, view] and view.view_src in tensors
    assert (view.view_offs, view.nb) == (head.view_offs, head.nb)
    assert graph.use_counts[add] == whole.use_counts[y] == 2
    assert view.view_src is not None and view.view_src.buffer is x.buffer


def test_sources_outside_the_split_come_without_their_own() -> None:
    x = Tensor(GGMLType.F32, (8,), name="x")
    a = ops.silu(x)
    b = ops.sqr(a)
    graph, _ = sent(Graph(b).view(1, 2), Buffers())
    (node,) = graph.nodes
    assert node.op is Op.SQR
    assert node.src[0].op is Op.UNARY and node.src[0].src == []


def test_foreign_buffers_are_none() -> None:
    x = Tensor(GGMLType.F32, (8,), name="x")
    alloc_tensors([x], HostBufferType("CPU"))
    encoded = encode_graph(Graph(ops.sqr(x)), lambda buffer: None)
    graph, _ = decode_graph(encoded.json, Buffers().buffer_of)
    assert graph.nodes[0].src[0].buffer is None


def test_the_decoded_graph_computes_the_same_bits() -> None:
    cpu = CpuDevice(1)
    x = Tensor(GGMLType.F32, (64, 3), name="x")
    w = Tensor(GGMLType.F32, (64,), name="w")
    y = ops.mul(ops.rms_norm(x, 1e-5), w)
    z = ops.silu(ops.add(y, y))
    graph = Graph(z)
    alloc_tensors([*graph.leafs, *graph.nodes], HostBufferType("CPU"))
    for leaf in graph.leafs:
        tensor_set(leaf, bytes(range(1, 129)) * (leaf.nbytes // 128))
    backend = cpu.init_backend()
    backend.graph_compute(graph)
    expected = z.buffer.get_tensor(z).tobytes()
    z.buffer.memset_tensor(z, 0)
    backend.graph_compute(sent(graph, Buffers())[0])
    assert z.buffer.get_tensor(z).tobytes() == expected
    backend.free()


@pytest.mark.parametrize("part", ["tensors", "nodes", "uses", "buffers"])
def test_incomplete_json_is_an_error(part: str) -> None:
    encoded = encode_graph(Graph(ops.sqr(Tensor(GGMLType.F32, (8,)))), lambda buffer: None)
    del encoded.json[part]
    with pytest.raises(KeyError):
        decode_graph(encoded.json, Buffers().buffer_of)
