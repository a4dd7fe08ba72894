"""`explain`: makes the record of a scheduled graph.

Reads names, sizes and addresses only, never data. So it also works for graphs in measured
memory. Tested by tests/sched/test_explain.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...alloc.layout import TensorAddress
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import INPUT, LATE, Tensor
from ..assignment import CAUSES
from ..backend import copy_seconds
from ..scheduled import ScheduledGraph, Transfer
from ..split import Split
from .reasons import Reasons, is_weight, label, rule_of
from .record import (
    VERSION,
    ComputeBuffer,
    CopyFacts,
    DeviceFacts,
    Explanation,
    LeafFacts,
    NodeFacts,
    OrderStep,
    Place,
    Rectangle,
    SourceFacts,
    SplitFacts,
)


def explain(scheduled: ScheduledGraph) -> Explanation:
    """The record of a graph: where its nodes are and run, why, and the copies that they need."""
    return _Explainer(scheduled).explain()


class _Explainer:
    """Finds tensors by their role in the graph: node, leaf or copy."""

    def __init__(self, scheduled: ScheduledGraph) -> None:
        self.scheduled = scheduled
        graph, order, layout = scheduled.graph, scheduled.order.graph, scheduled.layout
        self.node_index = {t: i for i, t in enumerate(graph.nodes)}
        self.leaf_index = {t: i for i, t in enumerate(graph.leafs)}
        self.step_index = {t: i for i, t in enumerate(order.nodes)}
        self.transfers = list(_transfers(scheduled))
        self.copy_index = {t.dst: i for i, (_, t) in enumerate(self.transfers)}
        self.parts = {_extent(t): t for t in (*graph.leafs, *graph.nodes) if t.view_src is not None}
        self.addresses: dict[Tensor, TensorAddress] = {}
        for tensors, found in ((order.leafs, layout.leafs), (order.nodes, layout.nodes)):
            for t, address in zip(tensors, found, strict=True):
                if address is not None:
                    self.addresses[t] = address
        self.taken_over = {order.nodes[i]: order.nodes[i].src[j] for i, j in layout.inplace}
        self.reasons = Reasons(scheduled, self.original)

    def explain(self) -> Explanation:
        scheduled = self.scheduled
        splits = [self._split(i, split) for i, split in enumerate(scheduled.splits)]
        copies = [self._copy(i, split, t) for i, (split, t) in enumerate(self.transfers)]
        nodes = [
            self._node(i, node, split.index)
            for split in splits
            for i, node in enumerate(
                scheduled.graph.nodes[split.first : split.last + 1], split.first
            )
        ]
        leafs = [self._leaf(i, leaf) for i, leaf in enumerate(scheduled.graph.leafs)]
        found = {rule_of(self.scheduled.causes[t]) for t in (*self.node_index, *self.leaf_index)}
        extra = {"4.cpy"} if copies else set()
        return Explanation(
            version=VERSION,
            n_nodes=len(nodes),
            n_splits=len(splits),
            n_copies=len(copies),
            bytes_copied=sum(copy.n_bytes for copy in copies),
            devices=[_device_facts(scheduled, i) for i in range(len(scheduled.backends))],
            causes={cause: text for cause, text in CAUSES.items() if cause in found | extra},
            splits=splits,
            copies=copies,
            nodes=nodes,
            leafs=leafs,
            steps=[self._step(t) for t in scheduled.order.graph.nodes],
            memory=self._memory(),
        )

    # --- the roles of tensors ---

    def original(self, src: Tensor) -> Tensor:
        """The tensor that a source is a copy of, whole or in part; otherwise the source itself."""
        i = self.copy_index.get(src)
        if i is not None:
            return self.transfers[i][1].src
        if src in self.node_index or src in self.leaf_index:
            return src
        i = self.copy_index.get(src.root)
        if i is None:
            return src
        whole = self.transfers[i][1].src
        return self.parts.get((whole.root, src.view_offs, src.ne, src.nb), whole)

    def _called(self, t: Tensor) -> str:
        i = self.copy_index.get(t)
        return label(t) if i is None else f"the copy of {label(self.transfers[i][1].src)}"

    def _source(self, src: Tensor) -> SourceFacts:
        t = self.original(src)
        kind = "node" if t in self.node_index else "leaf"
        return SourceFacts(
            name=label(t),
            kind=kind,
            index=self.node_index.get(t, self.leaf_index.get(t)),
            device=self.scheduled.backend_of(t).name,
            cause=self.scheduled.causes[t],
            copy=None if t is src else self.copy_index[src.root],
        )

    def _step(self, t: Tensor) -> OrderStep:
        if t in self.node_index:
            return OrderStep("node", self.node_index[t])
        if t in self.copy_index:
            return OrderStep("copy", self.copy_index[t])
        if t.op in VIEW_OPS:
            return OrderStep("part", self.copy_index[t.root])
        return OrderStep("keep", None)

    def _place(self, t: Tensor) -> Place | None:
        buffer = t.buffer
        if buffer is None:
            return None
        address = self.addresses.get(t.root)
        return Place(
            buffer_type=buffer.buft.name,
            usage=buffer.usage.value,
            chunk=None if address is None else address.chunk,
            offset=t.offset,
            size=t.nbytes if address is None or t.view_src is not None else address.size,
        )

    # --- splits, copies, nodes, leafs ---

    def _split(self, i: int, split: Split) -> SplitFacts:
        nodes = self.scheduled.graph.nodes[split.i_start : split.i_end]
        copies = [j for j, (where, _) in enumerate(self.transfers) if where == i]
        return SplitFacts(
            index=i,
            device=split.backend.name,
            first=split.i_start,
            last=split.i_end - 1,
            n_computed=sum(node.op not in VIEW_OPS for node in nodes),
            why=self._why_begun(i, split, nodes),
            copies=copies,
        )

    def _why_begun(self, i: int, split: Split, nodes: Sequence[Tensor]) -> str:
        if i == 0:
            return "it is the first split"
        before = self.scheduled.splits[i - 1].backend
        computing = [node for node in nodes if node.op not in VIEW_OPS]
        if before is not split.backend:
            node = computing[0]
            return (
                f"{label(node)} runs on {split.backend.name}, the split before on {before.name}: "
                f"{self.reasons.why(node)}"
            )
        # on the same device, late inputs and weights on another device begin a split (pass5_split)
        late = [t for src in computing[0].src if (t := self.original(src)).flags & LATE]
        if late:
            return f"{label(late[0])} is written while the split before computes"
        weights = next((w for node in computing if (w := self._copied_weights(node))), [])
        names = ", ".join(label(w) for w in weights)
        return (
            f"{names} must be copied to {split.backend.name}; a new split can reuse the memory of "
            "earlier copies"
        )

    def _copied_weights(self, node: Tensor) -> list[Tensor]:
        pairs = [(src, self.original(src)) for src in node.src]
        return [t for src, t in pairs if t is not src and is_weight(t)]

    def _copy(self, i: int, split: int, t: Transfer) -> CopyFacts:
        devices = t.src_backend.device, self.scheduled.splits[split].backend.device
        return CopyFacts(
            index=i,
            name=t.dst.name,
            source=label(t.src),
            kind=_copy_kind(t),
            from_device=t.src_backend.name,
            device=self.scheduled.splits[split].backend.name,
            split=split,
            n_bytes=t.nbytes,
            seconds=copy_seconds(*devices, t.nbytes),
            ahead=t.src in self.scheduled.splits[split].copied,
            step=self.step_index[t.dst],
            place=self._place(t.dst),
        )

    def _node(self, i: int, node: Tensor, split: int) -> NodeFacts:
        parent = self.taken_over.get(node)
        return NodeFacts(
            index=i,
            step=self.step_index[node],
            split=split,
            op=node.op.name,
            name=label(node),
            ne=node.ne,
            type=node.type.name,
            n_bytes=node.nbytes,
            device=self.scheduled.backend_of(node).name,
            cause=self.scheduled.causes[node],
            why=self.reasons.why(node),
            is_view=node.op in VIEW_OPS,
            sources=[self._source(src) for src in node.src],
            place=self._place(node),
            in_place_of=None if parent is None else self._called(parent),
        )

    def _leaf(self, i: int, leaf: Tensor) -> LeafFacts:
        data = "weight" if is_weight(leaf) else "data"
        return LeafFacts(
            index=i,
            name=label(leaf),
            kind="input" if leaf.root.flags & INPUT else data,
            ne=leaf.ne,
            type=leaf.type.name,
            n_bytes=leaf.nbytes,
            device=self.scheduled.backend_of(leaf).name,
            cause=self.scheduled.causes[leaf],
            why=self.reasons.why(leaf),
            place=self._place(leaf),
        )

    # --- memory ---

    def _memory(self) -> list[ComputeBuffer]:
        by_chunk: dict[tuple[int, int], list[Tensor]] = {}
        for t, address in self.addresses.items():
            by_chunk.setdefault((address.buffer_id, address.chunk), []).append(t)
        return [self._buffer(*key, by_chunk[key]) for key in sorted(by_chunk)]

    def _buffer(self, buffer_id: int, chunk: int, tensors: list[Tensor]) -> ComputeBuffer:
        tensors.sort(key=lambda t: (self.addresses[t].first, self.step_index.get(t, -1)))
        at = {t: i for i, t in enumerate(tensors)}
        return ComputeBuffer(
            buffer_type=tensors[0].buffer.buft.name,
            chunk=chunk,
            size=self.scheduled.layout.chunk_sizes[buffer_id][chunk],
            reserved=tensors[0].buffer.size,
            rectangles=[self._rectangle(t, at) for t in tensors],
        )

    def _rectangle(self, t: Tensor, at: dict[Tensor, int]) -> Rectangle:
        if t in self.step_index:
            step = self._step(t)
            kind, index = step.kind, step.index
        else:
            index = self.leaf_index.get(t)
            kind = "spare" if index is None else "leaf"
        address, parent = self.addresses[t], self.taken_over.get(t)
        return Rectangle(
            kind=kind,
            index=index,
            name=label(t),
            first=address.first,
            last=address.last,
            offset=address.offset,
            size=address.size,
            over=None if parent is None else at[parent],
        )


def _transfers(scheduled: ScheduledGraph) -> Iterator[tuple[int, Transfer]]:
    """All copies with their split, in the order in which splits need them."""
    ahead: dict[Tensor, Transfer] = {}
    for i, run in enumerate(scheduled.runs):
        own = {t.src: t for t in run.transfers}
        for src in run.split.inputs:
            yield i, own.get(src) or ahead[scheduled.copies[src, run.split.backend_id][0]]
        ahead.update((t.dst, t) for t in run.ahead)


def _extent(t: Tensor) -> tuple[Tensor, int, tuple[int, ...], tuple[int, ...]]:
    return t.root, t.view_offs, t.ne, t.nb


def _device_facts(scheduled: ScheduledGraph, backend_id: int) -> DeviceFacts:
    device = scheduled.backends[backend_id].device
    buft = scheduled.buffer_types[backend_id]
    return DeviceFacts(device.name, device.description, device.type.value, buft.name)


def _copy_kind(t: Transfer) -> str:
    if t.is_graph_input:
        return "input"
    if t.expert_node is not None:
        return "experts"
    if is_weight(t.src):
        return "weight"
    return "data" if t.src.op is Op.NONE else "activation"
