"""Passes 1 to 4: every tensor gets a backend (ggml-backend.cpp, ggml_backend_sched_split_graph).

Each pass takes an assignment and returns it. Assigned tensors keep their backend, except for
upgrades in pass 3. A test of one pass needs only a graph and a `BackendTable` of null backends.
Tested by tests/sched/test_passes.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from ..alloc.buffer import Buffer, Usage
from ..base.errors import SchedulingError
from ..graph.op import VIEW_OPS, Op
from ..graph.tensor import INPUT, Tensor, written_source
from .assignment import Assignment, BackendTable

# their weights (rope factors, attention sinks) are too small to decide the backend
_WEIGHTS_DO_NOT_CHOOSE = frozenset({Op.ROPE, Op.FLASH_ATTN_EXT})

_NO_WRITE = VIEW_OPS | {Op.NONE}


def assign_backends(a: Assignment) -> Assignment:
    """Run passes 1 to 4."""
    return pass4_remaining(pass3_best(pass2_expand(pass1_allocated(a))))


# --- pass 1: allocated tensors, graph inputs, ops with weights ---


def pass1_allocated(a: Assignment) -> Assignment:
    """Assign tensors with a fixed place: allocated tensors, graph inputs, ops with weights.

    Raises:
        SchedulingError: no backend can run an op where its allocated tensor is; a tensor was placed
            with another graph; a node would write into a weight; or an input or leaf is a view
            of a node.
    """
    ids = a.ids
    for leaf in a.graph.leafs:
        if leaf.view_src is not None:
            _check_viewed(a, leaf, leaf.view_src)
    for tensor in chain(a.graph.leafs, a.graph.nodes):
        if tensor not in ids:
            found = _from_place(a.table, tensor) or _from_weights(a.table, tensor)
            if found is not None:
                a.set(tensor, *found)
    return a


def _check_viewed(a: Assignment, leaf: Tensor, source: Tensor) -> None:
    if source.buffer is None and (source.op is not Op.NONE or source not in a.graph.use_counts):
        raise SchedulingError(
            f"{leaf!r} is a view of {source!r}, which must be allocated, or be a leaf of the graph"
        )


def _from_place(table: BackendTable, tensor: Tensor) -> tuple[int, str] | None:
    where = written_source(tensor) or tensor  # a copy of states would lose what is written
    root = where.root
    if root.buffer is not None:
        if root.buffer.usage is Usage.COMPUTE:
            raise SchedulingError(
                f"{tensor!r} was placed with another graph, whose memory is reused: build it "
                "again, or call restore() of that graph first"
            )
        if root.buffer.usage is Usage.WEIGHTS and tensor.op not in _NO_WRITE:
            raise SchedulingError(f"{tensor!r}: {tensor.op.name} would write into weights {root!r}")
        backend_id = _first_able(table, root.buffer, tensor)
        if backend_id is None:
            raise SchedulingError(
                f"{where!r} is in a buffer of {root.buffer.buft.name}, and no backend for this "
                f"buffer type can run {tensor.op.name}"
            )
        return backend_id, "1.dst"
    if tensor.flags & INPUT:
        if tensor.op in VIEW_OPS and root.op is not Op.NONE:
            raise SchedulingError(f"{tensor!r} cannot be an input: it views {root!r}, a node")
        return table.last, "1.inp"
    return None


def _from_weights(table: BackendTable, node: Tensor) -> tuple[int, str] | None:
    if node.op in _WEIGHTS_DO_NOT_CHOOSE:
        return None
    for j, src in enumerate(node.src):
        buffer: Buffer | None = src.buffer
        if buffer is not None and buffer.usage is Usage.WEIGHTS:
            backend_id = _first_able(table, buffer, node)
            if backend_id == table.last and table.op_offload and buffer.buft.is_host:
                for b in range(table.last):
                    if table.supports_op[b](node) and table.backends[b].offload_op(node):
                        return b, "1.off"
            return None if backend_id is None else (backend_id, f"1.wgt{j}")
    return None


def _first_able(table: BackendTable, buffer: Buffer, op: Tensor) -> int | None:
    """The backend with the highest priority that can use the buffer and run the op."""
    for b in table.readers(buffer.buft):
        if table.supports_op[b](op):
            return b
    return None


# --- pass 2: spread backends over neighboring nodes ---


def pass2_expand(a: Assignment) -> Assignment:
    """Spread assigned backends to unassigned neighbors, down and then up. The CPU spreads in a
    second round, so that it does not take nodes that another backend could have."""
    nodes = _computing(a)
    for skip_cpu in (True, False):
        _expand(a, nodes, skip_cpu)
        _expand(a, reversed(nodes), skip_cpu)
    return a


def _expand(a: Assignment, nodes: Iterable[Tensor], skip_cpu: bool) -> None:
    ids, table = a.ids, a.table
    current: int | None = None
    for node in nodes:
        backend_id = ids.get(node)
        if backend_id is not None:
            current = None if skip_cpu and backend_id == table.last else backend_id
        elif current is not None and table.supports_op[current](node):
            a.set(node, current, "2.sup")


# --- pass 3: the best backend for the rest; upgrades within the same memory ---


def pass3_best(a: Assignment) -> Assignment:
    """Give each unassigned node the backend that can read the most of its sources. Move an assigned
    node to a backend of higher priority over the same memory, if it can read all sources."""
    ids, upgrades = a.ids, a.table.upgrades
    for node in _computing(a):
        backend_id = ids.get(node)
        if backend_id is None:
            _assign_best(a, node)
        elif upgrades[backend_id]:
            _upgrade(a, node, upgrades[backend_id])
    return a


def _assign_best(a: Assignment, node: Tensor) -> None:
    best = -1
    for b, supports_op in enumerate(a.table.supports_op):
        if supports_op(node):
            n_supported = sum(
                (src in a.ids or src.view_src in a.ids) and a.buffer_supported(src, b)
                for src in node.src
            )
            if n_supported > best:
                best = n_supported
                a.set(node, b, "3.best")


def _upgrade(a: Assignment, node: Tensor, candidates: Iterable[int]) -> None:
    for b in candidates:
        if a.table.supports_op[b](node) and all(a.buffer_supported(s, b) for s in node.src):
            a.set(node, b, "3.upg")
            return


# --- pass 4: views and sources ---


def pass4_remaining(a: Assignment) -> Assignment:
    """Assign the rest: a view follows its source, a source follows the node that reads it, and any
    other node goes to the first backend that supports it.

    Raises:
        SchedulingError: no backend supports a node's op.
    """
    ids = a.ids
    for node in a.graph.nodes:
        if node.view_src is not None and node not in ids and node.view_src in ids:
            a.set(node, ids[node.view_src], "4.vsrc")
        for src in node.src:
            if src not in ids:
                _assign_source(a, src, node)
        if node not in ids:
            _assign_first(a, node)
    for leaf in a.graph.leafs:
        if leaf not in ids:
            _assign_viewed_leaf(a, leaf)
    return a


def _assign_source(a: Assignment, src: Tensor, node: Tensor) -> None:
    if src.view_src is not None:
        if src.view_src in a.ids:
            a.set(src, a.ids[src.view_src], "4.vsrc")
    elif node in a.ids:
        a.set(src, a.ids[node], "4.cur")


def _assign_first(a: Assignment, node: Tensor) -> None:
    for b, supports_op in enumerate(a.table.supports_op):
        if supports_op(node):
            a.set(node, b, "2.sup")
            return
    where = ", ".join(
        f"{src!r} in {(src.view_src or src).buffer.buft.name}"
        for src in node.src
        if (src.view_src or src).buffer is not None
    )
    known = ", ".join(b.name for b in a.table.backends)
    raise SchedulingError(
        f"no backend supports {node.op.name} for {node!r} (allocated sources: {where or 'none'}; "
        f"backends: {known})"
    )


def _assign_viewed_leaf(a: Assignment, leaf: Tensor) -> None:
    """Assign a leaf that nodes read only through views, and its views, to the backend of the first
    node that reads it. ggml aborts here."""
    reader = next((n for n in _computing(a) if any((s.view_src or s) is leaf for s in n.src)), None)
    a.set(leaf, a.table.last if reader is None else a.ids[reader], "4.cur")
    for node in a.graph.nodes:
        if node.view_src is leaf and a.causes[node] != "usr":
            a.set(node, a.ids[leaf], "4.vsrc")


def _computing(a: Assignment) -> list[Tensor]:
    return [node for node in a.graph.nodes if node.op not in VIEW_OPS]
