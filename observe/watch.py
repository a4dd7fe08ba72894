"""Prints statistics of computed tensors whose names match a pattern.

    watch = TensorWatch("^l_out|FLASH_ATTN_EXT", print)
    context.set_eval_callback(watch)

A node matches if the pattern is found in its name, or matches the whole name of its op. A matching
node is not fused with later nodes; the bits stay the same. Knows no flags. Tested by
tests/observe/test_watch.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from ..alloc.buffer import tensor_get
from ..alloc.host import DTYPES, read_array
from ..base.errors import RequestError
from ..graph.op import Op
from ..graph.tensor import Tensor, format_shape
from ..graph.types import GGMLType
from ..kernels.reference.arrays import F32Array, to_f32

N_VALUES: Final = 8  # first values of a tensor that are printed
N_NAMES: Final = 12  # names to suggest if none matched
WIDE: Final = (GGMLType.I64, GGMLType.F64, GGMLType.I8, GGMLType.I16)  # NumPy reads them


class TensorWatch:
    """An eval callback that passes one line per matching computed node to `write_line`.

    Raises:
        RequestError: the pattern is not a regular expression.
    """

    def __init__(self, pattern: str, write_line: Callable[[str], object]) -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as e:
            raise RequestError(f"{pattern!r} is not a regular expression: {e}") from None
        self._write_line = write_line
        self._names: dict[str, None] = {}  # all node names so far, in order
        self.n_matches = 0

    def __call__(self, node: Tensor, ask: bool) -> bool:
        if ask:
            self._names.setdefault(node.name)
            return self.matches(node)
        self.n_matches += 1
        self._write_line(tensor_line(node))
        return True

    def matches(self, node: Tensor) -> bool:
        found = self._pattern.search(node.name) or self._pattern.fullmatch(node.op.name)
        return found is not None

    def names(self) -> str:
        """Some node names, of one layer: suggestions for a pattern that matched nothing."""
        first = [n for n in self._names if not n.startswith("node_") and not re.search("-[1-9]", n)]
        more = ", ..." if len(first) > N_NAMES else ""
        return ", ".join(first[:N_NAMES]) + more


def tensor_line(t: Tensor) -> str:
    """Name, op, shape, type and statistics of a computed node. Quantized values are decoded.

    Statistics ignore NaN. For SET_ROWS they cover the rows that it wrote.
    """
    head = f"{t.name} = {t.op.name} {format_shape(t)}:"
    if t.is_empty:
        return f"{head} no values"
    values = written_rows(t) if t.op is Op.SET_ROWS and t.n_dims <= 2 else tensor_values(t)
    good = values[~np.isnan(values)]
    numbers = (
        f"min {good.min():.6g}, max {good.max():.6g}, mean {good.mean(dtype=np.float64):.6g}, "
        if good.size
        else ""
    )
    more = ", ..." if values.size > N_VALUES else ""
    first = ", ".join(f"{x:.6g}" for x in values.reshape(-1)[:N_VALUES])
    return f"{head} {numbers}{np.count_nonzero(np.isnan(values))} NaN; {first}{more}"


def tensor_values(t: Tensor) -> F32Array:
    """The values of an allocated tensor on any device, as float32 (ne[3], ne[2], ne[1], ne[0]).

    Integers above 2**24 are rounded.
    """
    return _decoded(t, read_array(t))


def written_rows(t: Tensor) -> F32Array:
    """The rows that a SET_ROWS into a matrix wrote, [n, ne[0]]."""
    size = t.type.row_size(t.ne[0])
    rows = [tensor_get(t, int(i) * t.nb[1], size) for i in read_array(t.src[1]).flat]
    return _decoded(t, np.stack(rows).view(DTYPES.get(t.type, np.uint8)))


def _decoded(t: Tensor, array: npt.NDArray[np.generic]) -> F32Array:
    return array.astype(np.float32) if t.type in WIDE else to_f32(t.type, array)
