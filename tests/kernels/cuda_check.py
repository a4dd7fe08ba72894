"""For the tests of the CUDA kernels: a node against the reference, whichever warps run first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import cuda_run
import reference_run
from reference_run import ERROR, F64Array, assert_close, values_of

from lamella.graph import GGMLType, Tensor
from lamella.graph.tensor import dup_layout, same_layout

Build = Callable[..., Tensor]

FLOATS: Final = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def computed(node: Tensor, over: Tensor | None = None, shift: int = 0) -> bytes:
    """The bytes of a node."""
    assert cuda_run.supports(node)
    return cuda_run.compute(node, over, shift).tobytes()


def check(build: Build, *sources: Tensor, error: float | None = None, **params: Any) -> F64Array:
    """The values of build(*sources, **params): near the reference's, the same in any order of
    blocks and warps and off the alignment.

    `error` is relative to the largest value; None: what the node's type allows.
    """
    node = build(*sources, **params)
    bits = computed(node)
    limit = ERROR.get(node.type, 0.0) if error is None else error
    assert_close(values_of(node), reference_run.run(build(*sources, **params)), limit)
    assert cuda_run.compute(build(*sources, **params), reverse=True).tobytes() == bits
    if node.view_src is None:
        assert computed(build(*sources, **params), shift=4) == bits
    return values_of(node)


def check_in_place(build: Build, *sources: Tensor, **params: Any) -> None:
    """Over each source of its layout, the node gets the bits that it gets elsewhere."""
    bits = computed(build(*sources, **params))
    copies = [dup_layout(t, t.name) for t in sources]
    fitting = [i for i, t in enumerate(sources) if same_layout(t, build(*sources, **params))]
    assert fitting, "no source has the node's layout"
    for i in fitting:
        for copy, t in zip(copies, sources, strict=True):
            copy.buffer, copy.offset = t.buffer.copy(), t.offset
        assert computed(build(*copies, **params), over=copies[i]) == bits


def assert_same(make: Build) -> None:
    """The node that `make` builds has the reference's bits, in any order of blocks and warps and as
    little aligned as its type allows."""
    bits, node = reference_run.bits(make()), make()
    assert computed(node) == bits
    assert cuda_run.compute(make(), reverse=True).tobytes() == bits
    if node.view_src is None:
        shift = 2 if node.type.is_quantized else node.type.type_size
        assert computed(make(), shift=shift) == bits
