"""Graphs as JSON: how a driver sends the nodes of a split to a worker.

    sent = encode_graph(graph, reference_of)
    graph, tensors = decode_graph(sent, buffer_of)

Tensors are sent with their sources. A source that the split does not compute is sent without its
own sources. `tensors` has the order of `Encoded.tensors`, so that replies can name tensors by
index. Knows no connection. Tested by tests/kernels/test_remote_graphs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, get_args, get_type_hints

from ...alloc.buffer import Buffer
from ...graph.graph import Graph
from ...graph.op import Op, OpParams
from ...graph.tensor import Tensor
from ...graph.types import GGMLType

Reference: TypeAlias = "tuple[int, int, int] | None"  # see `BufferReference`
Json: TypeAlias = dict[str, Any]

_PARAMS: Final = {kind.__name__: kind for kind in get_args(OpParams) if kind is not type(None)}


class BufferReference(NamedTuple):
    """A buffer of a worker. `buft` is the index of its type. An `id` below 0: the buffer is only
    measured, or has no memory."""

    id: int
    buft: int
    size: int


ReferenceOf = Callable[[Buffer], BufferReference | None]  # None: it is elsewhere
BufferOf = Callable[[BufferReference], Buffer]


class Encoded(NamedTuple):
    """A graph as JSON, and its tensors in the order of their indices."""

    json: Json
    tensors: Sequence[Tensor]


def encode_graph(graph: Graph, reference_of: ReferenceOf) -> Encoded:
    """The nodes of a graph as JSON. Buffers are sent as what `reference_of` returns."""
    index: dict[Tensor, int] = {}
    computed = set(graph.nodes)
    for node in graph.nodes:
        for tensor in (*node.src, node):
            if tensor.view_src is not None:
                index.setdefault(tensor.view_src, len(index))
            index.setdefault(tensor, len(index))
    tensors = list(index)
    buffers: dict[int, int] = {}  # by the buffer's identity
    references: list[BufferReference] = []
    rows: list[list[Any]] = []
    for tensor in tensors:
        place = None
        if tensor.buffer is not None:
            key = id(tensor.buffer)
            if key not in buffers:
                found = reference_of(tensor.buffer)
                buffers[key] = -1 if found is None else len(references)
                if found is not None:
                    references.append(_numbered(found, len(references)))
            place = buffers[key]
        src = [index[s] for s in tensor.src] if tensor in computed else []
        rows.append(_encode_tensor(tensor, src, index, place))
    return Encoded(
        {
            "buffers": [list(r) for r in references],
            "tensors": rows,
            "nodes": [index[node] for node in graph.nodes],
            "uses": [graph.use_counts.get(tensor, 0) for tensor in tensors],
        },
        tensors,
    )


def _numbered(found: BufferReference, i: int) -> BufferReference:
    """Equal graphs in measured memory get equal JSON: their buffers are numbered from -1 down."""
    return found if found.id >= 0 else found._replace(id=-1 - i)


def _encode_tensor(
    t: Tensor, src: list[int], index: dict[Tensor, int], buffer: int | None
) -> list[Any]:
    params = None if t.params is None else [type(t.params).__name__, list(t.params)]
    view = -1 if t.view_src is None else index[t.view_src]
    place = None if buffer is None or buffer < 0 else [buffer, t.offset]
    shape = [t.type.name, t.ne, t.nb]
    return [*shape, t.op.name, params, src, view, t.view_offs, t.flags, place, t.name]


def decode_graph(sent: Json, buffer_of: BufferOf) -> tuple[Graph, list[Tensor]]:
    """The graph of `encode_graph`, and all its tensors.

    Raises:
        ValueError, TypeError, LookupError, GraphError: it was not made by `encode_graph`.
    """
    buffers = [buffer_of(BufferReference(*r)) for r in sent["buffers"]]
    tensors = [_decode_tensor(row, buffers) for row in sent["tensors"]]
    for tensor, row in zip(tensors, sent["tensors"], strict=True):
        tensor.src = [tensors[i] for i in row[5]]
        if row[6] >= 0:
            tensor.view_src = tensors[row[6]]
    graph = Graph()
    graph.nodes = [tensors[i] for i in sent["nodes"]]
    graph.use_counts = dict(zip(tensors, sent["uses"], strict=True))
    return graph, tensors


def _decode_tensor(row: list[Any], buffers: Sequence[Buffer]) -> Tensor:
    type, ne, nb, op, params, _, _, view_offs, flags, place, name = row
    a, b, c, d = nb
    tensor = Tensor(
        GGMLType[type],
        ne,
        nb=(a, b, c, d),
        name=name,
        op=Op[op],
        params=None if params is None else _decode_params(*params),
        flags=flags,
    )
    tensor.view_offs = view_offs
    if place is not None:
        tensor.buffer, tensor.offset = buffers[place[0]], place[1]
    return tensor


def _decode_params(name: str, values: list[Any]) -> OpParams:
    kind = _PARAMS[name]
    fields = (
        hint(value)
        if isinstance(hint, type) and issubclass(hint, IntEnum)
        else tuple(value)
        if isinstance(value, list)
        else value
        for hint, value in zip(_hints(name), values, strict=True)
    )
    made: OpParams = kind(*fields)
    return made


@cache
def _hints(name: str) -> tuple[Any, ...]:
    return tuple(get_type_hints(_PARAMS[name]).values())
