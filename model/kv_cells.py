"""The memory of a sequence as bytes: read, or written to another one of equal length.

A part has the cells of a sequence in a layer, of its keys or its values; where the layer has a
window, those from the window's first page on. Or it has a state of a layer. No computation that
uses the sequence may be in flight, and it is not empty. Knows no files. Tested by
tests/model/test_prefix_file.py and tests/runtime/test_state_bits.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..alloc.buffer import Bytes, tensor_get, tensor_set
from ..graph.tensor import Tensor
from .kv_memory import MemoryGroup
from .kv_sequence import KVPool, KVSequence


def read_parts(groups: Sequence[MemoryGroup], seq: KVSequence) -> list[Bytes]:
    """The bytes of each part: of each layer its keys, then its values, or its states, group by
    group."""
    found = []
    for tensor, ranges in _parts(groups, seq):
        size = tensor.nb[1]
        read = [tensor_get(tensor, begin * size, n * size) for begin, n in ranges]
        found.append(np.concatenate(read))
    return found


def write_parts(groups: Sequence[MemoryGroup], seq: KVSequence, parts: Sequence[Bytes]) -> None:
    """Write what `read_parts` returned for a sequence of equal length."""
    for (tensor, ranges), data in zip(_parts(groups, seq), parts, strict=True):
        size, at = tensor.nb[1], 0
        for begin, n in ranges:
            tensor_set(tensor, data[at : at + n * size], begin * size)
            at += n * size


def part_sizes(groups: Sequence[MemoryGroup], pool: KVPool, length: int) -> list[int]:
    """The bytes of each part of a sequence of this length."""
    sizes = []
    for group in groups:
        sizes += [state.nb[1] for states in group.states.values() for state in states]
        n = length - pool.first_page(group.pool, length) * pool.page_size
        for _, layer in sorted(group.layers.items()):
            sizes += [n * tensor.nb[1] for tensor in layer.tensors]
    return sizes


def _parts(
    groups: Sequence[MemoryGroup], seq: KVSequence
) -> Iterator[tuple[Tensor, list[tuple[int, int]]]]:
    """Each tensor of cells, with the ranges that a sequence has in it: first cell, number. Slots of
    states are cells."""
    all_pages = iter(seq.pages)
    for group in groups:
        if group.states:
            assert seq.states is not None, "the sequence is of another pool"
            slot = seq.states.slot
            yield from ((s, [(slot, 1)]) for states in group.states.values() for s in states)
            continue
        pages = next(all_pages)
        first = seq.pool.first_page(group.pool, seq.length) * seq.pool.page_size
        cells = pages.cells(first, seq.length)
        runs = np.split(cells, np.flatnonzero(np.diff(cells) != 1) + 1)
        ranges = [(int(run[0]), len(run)) for run in runs]
        for _, layer in sorted(group.layers.items()):
            yield from ((tensor, ranges) for tensor in layer.tensors)
