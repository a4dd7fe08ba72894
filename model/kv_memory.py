"""The memory of a `KVPool`: the keys and values of each layer, on the layer's device.

`kv_sequence` decides which cells a sequence uses; this has their bytes. Knows no sequences and no
graphs. Tested by tests/model/test_context.py and test_context_groups.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from ..alloc.buffer import Buffer, Bytes, Usage, tensor_get, tensor_read, tensor_set
from ..alloc.tallocr import alloc_tensors
from ..base.errors import RequestError
from ..graph.tensor import Tensor
from ..graph.types import GGMLType
from ..sched.backend import Device
from .arch import KVLayer
from .kv_pages import PagePool
from .kv_sequence import CellCopy, KVPool
from .layer_memory import Kind, LayerMemory, groups_of, state_group
from .loader import LoadedModel
from .params import ContextParams
from .strict import clear_pool


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The layers that share a pool, and their keys and values, or their states.

    Attributes:
        name: "full", "latent", "state", or the window: "window 512".
        pool: the pages of the group; slots are pages of one cell.
        layers: the keys and values of each layer, by its index.
        states: of each layer, each [size, n_cells].
    """

    name: str
    pool: PagePool
    layers: dict[int, KVLayer] = field(default_factory=dict)
    states: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)

    @property
    def cell_bytes(self) -> int:
        """Bytes of one token in all layers, or of one slot."""
        kv = sum(layer.cell_bytes for layer in self.layers.values())
        return kv + sum(state.nb[1] for states in self.states.values() for state in states)

    @property
    def n_bytes(self) -> int:
        """Bytes of all cells, those of the scratch page included."""
        return self.pool.n_cells_total * self.cell_bytes


class KVRead(NamedTuple):
    """The keys and values that a layer reads for one token: `cell_bytes` for each position, of the
    last `n_swa` or of all."""

    cell_bytes: int
    n_swa: int | None

    def n_bytes(self, n_before: float) -> float:
        """Return the bytes read with `n_before` earlier positions."""
        return self.cell_bytes * (n_before if self.n_swa is None else min(n_before, self.n_swa))


class KVMemory:
    """Keys and values of each layer, with the cells of its group's pool, and states. `alloc`
    allocates them.

    Attributes:
        groups: the groups of layers with keys and values, in the order of the pools.
        state_group: all layers with states; None: there are none.
        layers: the keys and values that each layer uses. A layer that shares memory has those of
            their owner, a layer without memory has None.
        buffers: the allocated memory.

    Raises:
        RequestError: a type whose blocks do not divide a token's keys or values.
    """

    def __init__(self, model: LoadedModel, params: ContextParams, pool: KVPool) -> None:
        memory = model.hp.memory
        _check_types(memory, params)
        self._model = model
        self.buffers: list[Buffer] = []
        self.groups: tuple[MemoryGroup, ...] = tuple(
            MemoryGroup(
                group.name, own, {il: _layer(il, memory[il], params, own) for il in group.layers}
            )
            for group, own in zip(groups_of(memory), pool.pools, strict=True)
        )
        self.state_group = _state_group(memory, pool)
        owned = {il: layer for group in self.groups for il, layer in group.layers.items()}
        self.layers: Sequence[KVLayer | None] = [
            owned.get(il if layer.layer is None else layer.layer) for il, layer in enumerate(memory)
        ]

    @property
    def states(self) -> dict[int, tuple[Tensor, ...]]:
        """The states of each layer that has some."""
        return {} if self.state_group is None else self.state_group.states

    def alloc(self) -> None:
        """Allocate the keys and values, and the states, of each layer on their device.

        Raises:
            OutOfMemoryError: a device has too little memory; `free` frees what was allocated.
        """
        homes = dict[Device, list[Tensor]]()
        owned = {il: layer for group in self.groups for il, layer in group.layers.items()}
        for il, layer in sorted(owned.items()):
            homes.setdefault(self._model.kv_home(il), []).extend(layer.tensors)
        for il, states in sorted(self.states.items()):
            homes.setdefault(self._model.state_home(il), []).extend(states)
        for device, tensors in homes.items():
            memory = self._model.memory
            self.buffers += alloc_tensors(tensors, device.buffer_type, Usage.ANY, memory)
        clear_pool(self.buffers)

    def copy_cells(self, copies: Iterable[CellCopy]) -> None:
        """Copy cells of all layers of a group. No computation that writes them may be in flight."""
        for copy in copies:
            for layer in self.groups[copy.group].layers.values():
                for t in layer.tensors:
                    size = t.nb[1]
                    cells = tensor_get(t, copy.src_cell * size, copy.n * size)
                    tensor_set(t, cells, copy.dst_cell * size)

    @property
    def all_groups(self) -> Sequence[MemoryGroup]:
        """All groups: that of the states is the last one, and a slot is a page of it."""
        return self.groups if self.state_group is None else (*self.groups, self.state_group)

    def page_bytes(self, group: int) -> int:
        """Bytes of a page in all layers of a group; groups are those of `all_groups`."""
        owner = self.all_groups[group]
        return owner.cell_bytes * owner.pool.page_size

    def read_page(self, group: int, page: int) -> Bytes:
        """The bytes of a page: of each layer of its group the keys, then the values, or the states.

        No computation that writes them may be in flight.
        """
        found = np.empty(self.page_bytes(group), np.uint8)
        at = 0
        for tensor, begin, size in self._parts(group, page):
            tensor_read(tensor, found[at : at + size], begin)
            at += size
        return found

    def write_page(self, group: int, page: int, data: Bytes) -> None:
        """Write what `read_page` returned to a page of the group. No computation may be in
        flight."""
        at = 0
        for tensor, begin, size in self._parts(group, page):
            tensor_set(tensor, data[at : at + size], begin)
            at += size

    def _parts(self, group: int, page: int) -> Iterator[tuple[Tensor, int, int]]:
        """Each tensor of a group, with the offset and the size of a page in it, in bytes."""
        owner = self.all_groups[group]
        n_cells = owner.pool.page_size
        layers = (layer.tensors for layer in owner.layers.values())
        for tensor in chain.from_iterable((*layers, *owner.states.values())):
            size = n_cells * tensor.nb[1]
            yield tensor, page * size, size

    def reads(self) -> Iterator[tuple[Device, KVRead]]:
        """Yield what attention of each layer reads, and the device that has it; also states.

        Layers that share memory read it too.
        """
        for il, (layer, memory) in enumerate(zip(self.layers, self._model.hp.memory, strict=True)):
            if layer is not None:
                n_swa = None if memory.window is None else memory.window.n_swa
                device = self._model.kv_home(il if memory.layer is None else memory.layer)
                yield device, KVRead(layer.cell_bytes, n_swa)
        for il, states in self.states.items():
            n_bytes = sum(state.nb[1] for state in states)
            yield self._model.state_home(il), KVRead(2 * n_bytes, 1)  # read and written once

    def free(self) -> None:
        """Free all buffers. May be called again."""
        for buffer in self.buffers:
            buffer.free()


def _state_group(memory: Sequence[LayerMemory], pool: KVPool) -> MemoryGroup | None:
    group = state_group(memory)
    if group is None:
        return None
    assert pool.slots is not None, "the pool has no slots"
    n = pool.slots.n_cells_total
    states = {
        il: tuple(
            Tensor(GGMLType.F32, (size, n), name=f"cache_s{i}_l{il}")
            for i, size in enumerate(memory[il].states)
        )
        for il in group.layers
    }
    return MemoryGroup(group.name, pool.slots, states=states)


def _layer(il: int, memory: LayerMemory, params: ContextParams, pool: PagePool) -> KVLayer:
    layer = KVLayer.new(memory, pool.n_cells_total, params.type_k, params.type_v)
    return layer.named(f"cache_{{}}_l{il}")


def _check_types(memory: Sequence[LayerMemory], params: ContextParams) -> None:
    """Raise RequestError if a type's block size does not divide a token's keys or values.

    Values of latent layers have the type of their keys.
    """
    latent = [m for m in memory if m.kind is Kind.LATENT]
    others = [m for m in memory if m.kind is not Kind.LATENT]
    if latent and not others and params.type_v not in (params.type_k, GGMLType.F16):
        raise RequestError(
            f"type_v is {params.type_v.name}: values of this model are part of its keys, so it "
            f"must be F16 (the default) or that of type_k, {params.type_k.name}"
        )
    all_k = [m.n_embd_k for m in memory] + [m.n_embd_v for m in latent]
    all_k += [m.index.n_embd for m in latent if m.index is not None]
    all_v = [m.n_embd_v for m in others]
    for name, type, sizes in (("type_k", params.type_k, all_k), ("type_v", params.type_v, all_v)):
        wrong = next((n for n in sizes if n % type.block_size), None)
        if wrong is not None:
            raise RequestError(
                f"{name} is {type.name}: its blocks of {type.block_size} do not divide a token's "
                f"{wrong} elements in this model; use F16"
            )
