"""Pass 5 cuts a graph into splits and makes their copies; pass 6 copies the inputs of the graph.

A split is a run of nodes on one backend. Its inputs are sources in memory that its backend
cannot use. Each input gets a copy on the backend, and the sources of nodes are redirected to the
copy. Then `build_order` makes the scheduler's own graph: copies come before the split that
reads them, and a tensor lives until its last copy is made (ggml-backend.cpp,
ggml_backend_sched_split_graph).

If a backend can copy weights while it computes, the copies for its next split come before the nodes
of the current split. So they get memory apart from the weights in use, like a ring of two. Tested
by tests/sched/test_split.py and test_copy_ahead.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ..alloc.buffer import Usage
from ..graph.graph import Graph, Rewrites
from ..graph.op import VIEW_OPS, Op
from ..graph.tensor import BUNDLE, INPUT, LATE, OUTPUT, Tensor, dup_layout, view_tensor
from .assignment import Assignment
from .backend import Backend, KeepAlive

MAX_SRC: Final = 10  # sources of a dependency node, as in ggml


class Split:
    """The nodes [i_start, i_end) of the graph, run by one backend after its `inputs` were copied.

    `graph` has its nodes in the backend's order, and `plan` is the backend's plan for them. `ahead`
    are inputs of the next split on this backend, copied while this split computes. `copied` are its
    own inputs that were copied ahead.
    """

    def __init__(self, backend_id: int, backend: Backend, i_start: int) -> None:
        self.backend_id = backend_id
        self.backend = backend
        self.i_start = i_start
        self.i_end = i_start
        self.inputs: list[Tensor] = []
        self.graph = Graph()
        self.plan: Any = None
        self.ahead: list[Tensor] = []
        self.copied: set[Tensor] = set()


class SplitGraph:
    """A graph cut into splits, and its copies. `Graph.restore` takes the cut back.

    `copies[tensor, backend_id]` are the copies of a tensor on a backend, one for each copy index.
    `views[tensor, backend_id]` replaces a part of a bundle by a view of the bundle's copy.
    """

    def __init__(self, a: Assignment, n_copies: int, copy_index: int) -> None:
        self.assignment = a
        self.n_copies = n_copies
        self.copy_index = copy_index
        self.splits: list[Split] = []
        self.copies: dict[tuple[Tensor, int], list[Tensor]] = {}
        self.views: dict[tuple[Tensor, int], Tensor] = {}
        self.graph_inputs: list[Tensor] = []
        assert a.graph.rewrites is None, f"graph {a.graph.uid} is scheduled: restore it first"
        self.rewrites = a.graph.rewrites = Rewrites()

    def copy_of(self, tensor: Tensor, backend_id: int) -> Tensor:
        """The copy of a tensor with this graph's copy index."""
        return self.copies[tensor, backend_id][self.copy_index]

    def redirect(self, node: Tensor, j: int, copy: Tensor) -> None:
        """Replace source `j` of a node by `copy`."""
        self.rewrites.sources.append((node, j, node.src[j]))
        node.src[j] = copy

    def mark_rotating(self, leaf: Tensor) -> None:
        """Keep the memory of a graph input: another run may still read it."""
        self.rewrites.flags.append((leaf, leaf.flags))
        leaf.flags |= OUTPUT

    def reorder(self, split: Split, nodes: Sequence[Tensor]) -> None:
        """Order the nodes of a split like `nodes`."""
        graph = self.assignment.graph
        if self.rewrites.order is None:
            self.rewrites.order = list(graph.nodes)
        graph.nodes[split.i_start : split.i_end] = nodes


# --- pass 5 ---


def pass5_split(s: SplitGraph) -> SplitGraph:
    """Cut the graph where the backend changes. Also cut before a node with weights on another
    backend, if the split has inputs: then the memory of earlier copied weights can be reused. And
    cut before a node that reads a late input, so that the split before it can run first."""
    a = s.assignment
    ids, nodes = a.ids, a.graph.nodes
    split: Split | None = None
    for i, node in enumerate(nodes):
        if node.op in VIEW_OPS:
            continue
        backend_id = ids[node]
        if split is None:
            split = _begin(s, backend_id, 0)  # leading views belong to the first split
        elif (
            backend_id != split.backend_id
            or (split.inputs and _brings_weight(a, node))
            or any(src.flags & LATE for src in node.src)
        ):
            split.i_end = i
            split = _begin(s, backend_id, i)
        for j, src in enumerate(node.src):
            if ids[src] != backend_id and not a.buffer_supported(src, backend_id):
                _read_through_copy(s, split, node, j)
    if split is None and nodes:
        split = _begin(s, 0, 0)  # only views: nothing to compute
    if split is not None:
        split.i_end = len(nodes)
    return s


def _begin(s: SplitGraph, backend_id: int, i: int) -> Split:
    split = Split(backend_id, s.assignment.table.backends[backend_id], i)
    s.splits.append(split)
    return split


def _brings_weight(a: Assignment, node: Tensor) -> bool:
    backend_id = a.ids[node]
    return any(
        src.buffer is not None
        and src.buffer.usage is Usage.WEIGHTS
        and a.ids[src] != backend_id
        and not a.buffer_supported(src, backend_id)
        for src in node.src
    )


def _read_through_copy(s: SplitGraph, split: Split, node: Tensor, j: int) -> None:
    src, backend_id = node.src[j], split.backend_id
    whole = _input_of(src)
    if (whole, backend_id) not in s.copies:
        copies = [_copy(s, whole, backend_id, c, "4.cpy") for c in range(s.n_copies)]
        s.copies[whole, backend_id] = copies
        split.inputs.append(whole)
    if whole is not src and (src, backend_id) not in s.views:
        s.views[src, backend_id] = _view_of_copy(s, src, whole, backend_id)
    s.redirect(node, j, s.views.get((src, backend_id)) or s.copy_of(src, backend_id))


def _input_of(src: Tensor) -> Tensor:
    """The tensor to copy for a source: a whole bundle for a part of it."""
    t = src
    while t.op in VIEW_OPS:
        t = t.src[0]
    return t if t.flags & BUNDLE else src


def _view_of_copy(s: SplitGraph, src: Tensor, whole: Tensor, backend_id: int) -> Tensor:
    copy = s.copy_of(whole, backend_id)
    view = dup_layout(src, f"{copy.name} ({src.name})")
    view.op, view.src, view.view_src, view.view_offs = Op.VIEW, [copy], copy, src.view_offs
    s.assignment.set(view, backend_id, "4.cpy")
    return view


def _copy(s: SplitGraph, src: Tensor, backend_id: int, c: int, cause: str) -> Tensor:
    a = s.assignment
    copy = dup_layout(src, f"{a.table.backends[backend_id].name}#{src.name}#{c}")
    if s.n_copies > 1:
        copy.flags = INPUT | OUTPUT  # never reused: another run may still read it
    a.set(copy, backend_id, cause)
    return copy


# --- pass 6 ---


def pass6_graph_inputs(s: SplitGraph) -> SplitGraph:
    """With several copies, give each graph input that many on its own backend. The input itself is
    the copy with this graph's copy index. Inputs that no node reads get copies too, so that the
    graph's composition does not depend on which inputs are used."""
    if s.n_copies == 1:
        return s
    a = s.assignment
    for leaf in a.graph.leafs:
        if leaf.flags & INPUT:
            backend_id = a.ids[leaf]
            copies = [
                leaf if c == s.copy_index else _copy(s, leaf, backend_id, c, "6.cpy")
                for c in range(s.n_copies)
            ]
            s.mark_rotating(leaf)
            for copy in copies:
                copy.flags = leaf.flags  # so that the layout fits any copy index
            s.copies[leaf, backend_id] = copies
            a.set(leaf, backend_id, "6.cpy")
            s.graph_inputs.append(leaf)
    return s


# --- the scheduler's own graph ---


class Order:
    """The scheduler's own graph, for which memory is planned, with the backend of each tensor."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.node_ids: list[int] = []
        self.leaf_ids: list[int] = []

    def add_node(self, node: Tensor, backend_id: int) -> None:
        self.graph.nodes.append(node)
        self.node_ids.append(backend_id)

    def add_leafs(self, leafs: Iterable[Tensor], backend_id: int) -> None:
        for leaf in leafs:
            self.graph.leafs.append(leaf)
            self.leaf_ids.append(backend_id)


def build_order(s: SplitGraph) -> Order:
    """Let backends optimize their splits, and put all nodes and copies in order.

    For each input of a split there is a dependency view, which keeps the source alive until it is
    copied, and then the copy. The nodes of the split follow.
    """
    a = s.assignment
    ids, order = a.ids, Order()
    _choose_ahead(s)
    for split in s.splits:
        requests = _optimize(s, split)
        for src in [*(t for t in split.inputs if t not in split.copied), *split.ahead]:
            dependency = view_tensor(src)
            dependency.src = [src]
            order.add_node(dependency, ids[src])
            copy = s.copy_of(src, split.backend_id)
            order.add_node(copy, split.backend_id)
            for view in s.views.values():
                if view.view_src is copy:
                    order.add_node(view, split.backend_id)
        if requests:
            _add_with_requests(order, split, ids, requests)
        else:
            order.graph.nodes += split.graph.nodes
            order.node_ids += [ids[node] for node in split.graph.nodes]
    if s.n_copies > 1:
        # rotating copies come first, each with its own memory
        for src in s.graph_inputs:
            order.add_leafs(s.copies[src, ids[src]], ids[src])
        for split in s.splits:
            for src in split.inputs:
                order.add_leafs(s.copies[src, split.backend_id], split.backend_id)
    for leaf in a.graph.leafs:
        order.add_leafs((leaf,), ids[leaf])
    return order


def _choose_ahead(s: SplitGraph) -> None:
    """Choose the weights that are copied while an earlier split computes."""
    if s.n_copies > 1:
        return  # each copy has its own memory already
    last: dict[Backend, Split] = {}
    for split in s.splits:
        earlier = last.get(split.backend)
        if earlier is not None and split.backend.device.caps.copy_ahead:
            earlier.ahead = [src for src in split.inputs if _is_whole_host_weight(src)]
            split.copied = set(earlier.ahead)
        last[split.backend] = split


def _is_whole_host_weight(src: Tensor) -> bool:
    """True for weights in host memory, except experts: the used ones are known only later."""
    buffer = src.buffer
    on_host = buffer is not None and buffer.usage is Usage.WEIGHTS and buffer.buft.is_host
    return on_host and src.ne[2] == 1 and src.is_contiguous


def _optimize(s: SplitGraph, split: Split) -> Sequence[KeepAlive]:
    split.graph = s.assignment.graph.view(split.i_start, split.i_end)
    before = list(split.graph.nodes)
    requests = split.backend.graph_optimize(split.graph)
    after = split.graph.nodes
    if after != before:
        assert set(after) == set(before) and len(after) == len(before), (
            f"{split.backend.name} changed the set of nodes while optimizing"
        )
        _check_order(split, after)
        s.reorder(split, after)
    return requests


def _check_order(split: Split, nodes: Sequence[Tensor]) -> None:
    place = {node: i for i, node in enumerate(nodes)}
    for i, node in enumerate(nodes):
        late = [src for src in node.src if place.get(src, -1) >= i]
        assert not late, f"{split.backend.name} put {node!r} before its source {late[0]!r}"


def _add_with_requests(
    order: Order, split: Split, ids: dict[Tensor, int], requests: Sequence[KeepAlive]
) -> None:
    keep: dict[Tensor, list[Tensor]] = {}
    for request in dict.fromkeys(requests):  # without repetitions
        keep.setdefault(request.until, []).append(request.tensor)
    for node in split.graph.nodes:
        order.add_node(node, ids[node])
        tensors = keep.pop(node, [])
        for i in range(0, len(tensors), MAX_SRC):
            dependency = view_tensor(tensors[i])
            dependency.src = tensors[i : i + MAX_SRC]
            order.add_node(dependency, ids[node])
    assert not keep, f"{split.backend.name}: keep-alive until {list(keep)}, not of its split"
