"""For the tests of the CPU kernels: a node against the reference, on one thread and on several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import cpu_run
import reference_run
from reference_run import ERROR, F64Array, assert_close, values_of

from lamella.graph import GGMLType, Tensor
from lamella.graph.tensor import dup_layout, same_layout

Build = Callable[..., Tensor]

FLOATS: Final = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def computed(node: Tensor, n_threads: int = 1, over: Tensor | None = None) -> bytes:
    """The bytes of a node."""
    return cpu_run.compute(node, n_threads, over).tobytes()


def check(build: Build, *sources: Tensor, error: float | None = None, **params: Any) -> F64Array:
    """The values of build(*sources, **params): near the reference's, the same on 1 and 3 threads.

    `error` is relative to the largest value; None: what the node's type allows.
    """
    node = build(*sources, **params)
    bits = computed(node)
    limit = ERROR.get(node.type, 0.0) if error is None else error
    assert_close(values_of(node), reference_run.run(build(*sources, **params)), limit)
    assert computed(build(*sources, **params), 3) == bits
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
        assert computed(build(*copies, **params), 2, over=copies[i]) == bits
