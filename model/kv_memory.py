"""The memory of a `PagePool`: the keys and values of each layer, on the layer's device.

`kv_pages` decides which cells a sequence uses; this has their bytes. Knows no sequences and no
graphs. Tested by tests/model/test_context.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..alloc.buffer import Buffer, Usage, tensor_get, tensor_set
from ..alloc.tallocr import alloc_tensors
from ..base.errors import RequestError
from ..graph.tensor import Tensor
from ..sched.backend import Device
from .arch import KVLayer
from .hparams import HParams
from .kv_pages import CellCopy
from .loader import LoadedModel
from .params import ContextParams
from .strict import clear_pool


class KVMemory:
    """Keys and values of `n_cells` tokens in every layer. `alloc` allocates them.

    Attributes:
        layers: K [n_embd_k, n_cells] and V [n_embd_v, n_cells] of each layer.
        buffers: the allocated memory.

    Raises:
        RequestError: a type whose blocks do not divide a token's keys or values.
    """

    def __init__(self, model: LoadedModel, params: ContextParams, n_cells: int) -> None:
        hp = model.hp
        _check_types(hp, params)
        self._model = model
        self.layers: list[KVLayer] = []
        self.buffers: list[Buffer] = []
        for il in range(hp.n_layer):
            k = Tensor(params.type_k, (hp.layers[il].n_embd_k, n_cells), name=f"cache_k_l{il}")
            v = Tensor(params.type_v, (hp.layers[il].n_embd_v, n_cells), name=f"cache_v_l{il}")
            self.layers.append(KVLayer(k, v))

    def alloc(self) -> None:
        """Allocate the keys and values of each layer on their device.

        Raises:
            OutOfMemoryError: a device has too little memory; `free` frees what was allocated.
        """
        homes = dict[Device, list[Tensor]]()
        for il, layer in enumerate(self.layers):
            homes.setdefault(self._model.kv_home(il), []).extend((layer.k, layer.v))
        for device, tensors in homes.items():
            memory = self._model.memory
            self.buffers += alloc_tensors(tensors, device.buffer_type, Usage.ANY, memory)
        clear_pool(self.buffers)

    def copy_cells(self, copies: Iterable[CellCopy]) -> None:
        """Copy cells of all layers. No computation that writes the pool may be in flight."""
        for copy in copies:
            for layer in self.layers:
                for t in (layer.k, layer.v):
                    size = t.nb[1]
                    cells = tensor_get(t, copy.src_cell * size, copy.n * size)
                    tensor_set(t, cells, copy.dst_cell * size)

    def free(self) -> None:
        """Free all buffers. May be called again."""
        for buffer in self.buffers:
            buffer.free()


def _check_types(hp: HParams, params: ContextParams) -> None:
    """Raise RequestError if a type's block size does not divide a token's keys or values."""
    all_k: Sequence[int] = [m.n_embd_k for m in hp.memory]
    all_v: Sequence[int] = [m.n_embd_v for m in hp.memory]
    for name, type, sizes in (("type_k", params.type_k, all_k), ("type_v", params.type_v, all_v)):
        if any(n % type.block_size for n in sizes):
            raise RequestError(
                f"{name} is {type.name}: its blocks of {type.block_size} do not divide a token's "
                f"{sizes[0]} elements in this model; use F16"
            )
