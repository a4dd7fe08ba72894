"""What each layer of a model remembers of earlier tokens, and the groups of layers that share it.

A group is all layers of equal kind and window. It has one pool and one page table, as a page table
counts cells only: the sizes of keys and values may differ by layer. All layers with states are a
group too, whose pool has slots (state_slots.py). Knows no tensors and no sequences.
Tested by tests/model/test_layer_memory.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

I32Array = npt.NDArray[np.int32]


class Kind(Enum):
    """The kind of a layer's memory."""

    FULL = "full"  # keys and values of all positions
    WINDOW = "window"  # keys and values of the positions in the window
    LATENT = "latent"  # a row of all positions: their keys, whose first elements are the values
    SHARED = "shared"  # those of another layer
    STATE = "state"  # states of a fixed size, and no keys and values
    NONE = "none"  # the layer has no attention

    @property
    def is_paged(self) -> bool:
        """True if the layer has pages of its own."""
        return self in (Kind.FULL, Kind.WINDOW, Kind.LATENT)


@dataclass(frozen=True, slots=True)
class Window:
    """The positions that a token sees: the last `n_swa`, its own included.

    If `chunked`, positions are divided into chunks of `n_swa` and a token sees its own chunk only.
    If `symmetric`, it sees `n_swa // 2` positions on each side, for models that are not causal.
    """

    n_swa: int
    chunked: bool = False
    symmetric: bool = False

    @property
    def n_visible(self) -> int:
        """The most positions that a token sees."""
        return self.n_swa // 2 * 2 + 1 if self.symmetric else self.n_swa

    @overload
    def begin(self, pos: int) -> int: ...
    @overload
    def begin(self, pos: I32Array) -> I32Array: ...
    def begin(self, pos: int | I32Array) -> int | I32Array:
        """Return the first position that a token at `pos` sees: an int, or an array for an array.

        It never falls as `pos` rises.
        """
        if self.chunked:
            return pos // self.n_swa * self.n_swa
        n_before = self.n_swa // 2 if self.symmetric else self.n_swa - 1
        if isinstance(pos, np.ndarray):
            return np.maximum(pos - n_before, 0)
        return max(pos - n_before, 0)

    def ends(self, pos: I32Array, ends: I32Array) -> I32Array:
        """Return the end of the positions that tokens see, within `ends` without a window."""
        return np.minimum(ends, pos + self.n_swa // 2 + 1) if self.symmetric else ends

    def __str__(self) -> str:
        return f"{'chunks' if self.chunked else 'window'} {self.n_swa}"


class Index(NamedTuple):
    """A sparse indexer of a LATENT layer (DeepSeek Sparse Attention).

    Attributes:
        n_embd: elements of one token's key for it, the last ones of the token's row.
        top_k: the number of positions that a token attends to.
    """

    n_embd: int
    top_k: int


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """The memory of one layer.

    Attributes:
        n_embd_k: elements of one token's keys, with those of its indexer.
        n_embd_v: elements of one token's values; a LATENT layer does not store them.
        window: the positions that a token sees; None: all up to its own.
        layer: the layer whose memory a SHARED layer uses. Its sizes and window are equal.
        states: elements (F32) of each state of a sequence. A layer of any kind may have some beside
            its keys and values.
        index: its sparse indexer; None: tokens attend to all positions that they see, or to those
            that an earlier layer chose.
    """

    kind: Kind
    n_embd_k: int = 0
    n_embd_v: int = 0
    window: Window | None = None
    layer: int | None = None
    states: tuple[int, ...] = ()
    index: Index | None = None

    def __post_init__(self) -> None:
        assert (self.layer is not None) == (self.kind is Kind.SHARED), f"layer of {self}"
        assert self.kind is not Kind.WINDOW or self.window is not None, f"window of {self}"
        assert self.kind is not Kind.STATE or self.states, f"states of {self}"


@dataclass(frozen=True, slots=True)
class Group:
    """Layers with one pool and one page table, or with slots: those that own memory, in order."""

    kind: Kind
    window: Window | None
    layers: tuple[int, ...]

    @property
    def name(self) -> str:
        """Return "full", "latent", "state", or the window: "window 512"."""
        return str(self.window or self.kind.value)


def groups_of(memory: Sequence[LayerMemory]) -> tuple[Group, ...]:
    """Return the groups of layers that own keys and values, in the order of their first layers."""
    found = dict[tuple[Kind, Window | None], list[int]]()
    for il, layer in enumerate(memory):
        if layer.kind.is_paged:
            found.setdefault((layer.kind, layer.window), []).append(il)
    return tuple(Group(kind, window, tuple(layers)) for (kind, window), layers in found.items())


def state_group(memory: Sequence[LayerMemory]) -> Group | None:
    """Return the group of all layers with states; None: there are none."""
    layers = tuple(il for il, layer in enumerate(memory) if layer.states)
    return Group(Kind.STATE, None, layers) if layers else None


def index_of(memory: Sequence[LayerMemory]) -> tuple[int, Index] | None:
    """Return the first layer with a sparse indexer, and that; all have the same. None: no layer
    has one."""
    return next(((il, m.index) for il, m in enumerate(memory) if m.index is not None), None)


def group_indices(memory: Sequence[LayerMemory]) -> tuple[int | None, ...]:
    """Return for each layer the index of the group whose keys and values it uses; None: it has
    none."""
    owners = {il: i for i, group in enumerate(groups_of(memory)) for il in group.layers}
    return tuple(
        owners.get(il if layer.layer is None else layer.layer) for il, layer in enumerate(memory)
    )
