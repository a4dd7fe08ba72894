"""Computes a node by a backend in its device's memory, between guard bytes, for the GPU's tests.

The node's tensors are those of `reference_run`, with host data. Data is copied to the device,
computed there, and read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cpu_run
import numpy as np
from reference_run import Array, data

from lamella.alloc import Buffer
from lamella.graph import Graph, Tensor
from lamella.graph.tensor import written_source
from lamella.kernels.cuda.backend import CudaBackend


def compute(backend: CudaBackend, node: Tensor, shift: int = 0) -> Array:
    """Compute a node and return its array. The sources that it does not write, and the bytes around
    it, must not change.

    Args:
        backend: a backend of the device.
        node: the node; the reference kernels compute its sources.
        shift: bytes off the alignment.
    """
    assert backend.supports_op(node), f"{node!r} is not supported"
    cpu_run.prepare(node, shift=shift)
    states = written_source(node)
    written = {id(t.root.buffer) for t in (node, states) if t is not None}
    graph = Graph(node)
    with _on_device(backend, [node, *node.src]) as copies:
        plan = backend.graph_plan_create(graph.view(len(graph) - 1, len(graph)))
        backend.graph_plan_compute(plan)
        backend.synchronize()
        now = {key: (array, _read(buffer)) for key, (array, buffer) in copies.items()}
    for key, (array, after) in now.items():
        if key in written:
            array[:] = after
        else:
            assert (after == array).all(), f"{node}: a source was written"
    cpu_run.check_guards(node)
    return data(node)


Copies = dict[int, tuple[Array, Buffer]]  # by id of the array


@contextmanager
def _on_device(backend: CudaBackend, tensors: list[Tensor]) -> Iterator[Copies]:
    """Move tensors and their roots to copies of their arrays on the device, in the block."""
    moved = list(dict.fromkeys([*tensors, *(t.root for t in tensors)]))
    hosts = [t.buffer for t in moved]
    copies: Copies = {}
    try:
        for t, array in zip(moved, hosts, strict=True):
            if id(array) not in copies:
                buffer = backend.device.buffer_type.alloc_buffer(array.size)
                copies[id(array)] = array, buffer
                buffer._write(0, array)
            t.buffer = copies[id(array)][1]
        yield copies
    finally:
        for t, array in zip(moved, hosts, strict=True):
            t.buffer = array
        for _, buffer in copies.values():
            buffer.free()


def _read(buffer: Buffer) -> Array:
    return np.asarray(buffer._read(0, buffer.size))
