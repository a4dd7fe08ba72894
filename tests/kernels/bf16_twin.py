"""Products of pairs of BF16 in NumPy, for the tests of the instruction `vdpbf16ps`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32Array = npt.NDArray[np.float32]
SMALLEST = np.float32(2.0**-126)  # normal float32


def halves_of(x: F32Array) -> npt.NDArray[np.uint16]:
    """BF16 bits of floats, cut."""
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def flushed(x: F32Array) -> F32Array:
    """Zeros instead of subnormal numbers, with their signs."""
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x).astype(np.float32)


def dot2(sums: F32Array, x: F32Array, y: F32Array) -> F32Array:
    """Sums plus both products of pairs [..., 2] of BF16, the second one first."""
    with np.errstate(all="ignore"):
        x, y, result = flushed(x), flushed(y), flushed(sums)
        for i in (1, 0):
            # exact: a product may be beyond float32 if the sum is not
            product = x[..., i].astype(np.float64) * y[..., i]
            result = flushed((result + product).astype(np.float32))
    return result
