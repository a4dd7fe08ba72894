"""The pools of a model's groups of layers, and their sizes.

A pool of layers without a window has n_ctx cells, which all sequences share. A pool of layers with
a window has pages for n_parallel sequences: those of a window and of a ubatch each. To these
come pages for the prefix cache. Layers with states have slots. Knows no tensors.
Tested by tests/model/test_context_groups.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .kv_pages import PAGE_SIZE, PagePool
from .kv_sequence import KVPool
from .layer_memory import Group, LayerMemory, groups_of, state_group
from .params import ContextParams
from .state_slots import SlotPool

PREFIX_EACH: Final = 1024  # default cells for the prefix cache, for each parallel sequence
CHECKPOINTS: Final = 8  # default states for the prefix cache, for each parallel sequence
CHECKPOINT_BYTES: Final = 1 << 29  # the most bytes of these; each has one in any case


def make_pool(
    memory: Sequence[LayerMemory], params: ContextParams, n_ctx: int, n_ubatch: int
) -> KVPool:
    """Return the pools of a model, in the order of `groups_of(memory)`.

    Raises:
        RequestError: `n_ctx` is below 1, or the cells exceed an int32.
    """
    pools = [_pool_of(group, params, n_ctx, n_ubatch) for group in groups_of(memory)]
    return KVPool(n_ctx, pools, n_seqs=params.n_parallel, slots=_slots(memory, params))


def _slots(memory: Sequence[LayerMemory], params: ContextParams) -> SlotPool | None:
    """Return the slots of layers with states; None: there are none."""
    if state_group(memory) is None:
        return None
    n_bytes = 4 * sum(n for layer in memory for n in layer.states)
    n_each = params.ctx_checkpoints
    if n_each is None:
        n_each = min(CHECKPOINTS, max(CHECKPOINT_BYTES // params.n_parallel // n_bytes, 1))
    return SlotPool(params.n_parallel, n_each * params.n_parallel)


def _pool_of(group: Group, params: ContextParams, n_ctx: int, n_ubatch: int) -> PagePool:
    n_cells = most_cells(group, params, n_ubatch)
    if n_cells is None or n_cells >= n_ctx:  # a sequence may as well keep all pages
        return PagePool(n_ctx)
    return PagePool(n_cells, window=group.window)


def most_cells(group: Group, params: ContextParams, n_ubatch: int) -> int | None:
    """Return the cells of a group's pool if the context is larger than that; None: no limit."""
    if group.window is None or params.swa_full:
        return None
    return window_cells(group.window.n_swa, params, n_ubatch)


def window_cells(
    n_swa: int, params: ContextParams, n_ubatch: int, page_size: int = PAGE_SIZE
) -> int:
    """Return the cells of a pool with a window.

    A ubatch of a sequence reads or writes n_swa - 1 + n_ubatch positions at most. They may begin
    and end inside a page. A copy of a shared page needs a page too.
    """
    n_pages = -(-(n_swa + max(n_ubatch, page_size)) // page_size) + 1
    n_prefix = prefix_cells(n_swa, params)
    return (params.n_parallel * n_pages + -(-n_prefix // page_size)) * page_size


def prefix_cells(n_swa: int, params: ContextParams) -> int:
    """Return the cells that a pool with a window has for the prefix cache."""
    if params.swa_prefix is not None:
        return params.swa_prefix
    return max(n_swa, PREFIX_EACH * params.n_parallel)
