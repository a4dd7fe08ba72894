"""Calls of op builders, for the tables of test_ops_shapes.py and test_ops_rules.py.

A string in a row is a tensor, written as its repr without F32: `b[64, 2] F16`. The prefix `turned`
makes rows with gaps inside, `gaps` makes whole rows with a gap after each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lamella.graph import GGMLType, Tensor, ops

TENSOR = re.compile(r"(turned |gaps |)(\w+)\[([\d, ]+)\] ?(\w*)")


def tensor(text: str) -> Tensor:
    match = TENSOR.fullmatch(text)
    assert match is not None, text
    layout, name, shape, type_name = match.groups()
    type = GGMLType[type_name or "F32"]
    ne = [int(n) for n in shape.split(",")]
    if layout == "turned ":
        return ops.transpose(Tensor(type, (ne[1], ne[0], *ne[2:]), name="upright")).named(name)
    if layout == "gaps ":
        wide = Tensor(type, (2 * ne[0], *ne[1:]), name="wide")
        return ops.view(wide, ne, nb=wide.nb).named(name)
    return Tensor(type, ne, name=name)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the builder `name`."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def build(self, given: list[Tensor]) -> Tensor:
        """Return the result. Append its arguments to `given`, even if the builder raises."""
        args = [self._argument(a, given) for a in self.args]
        kwargs = {key: self._argument(a, given) for key, a in self.kwargs.items()}
        result = getattr(ops, self.name)(*args, **kwargs)
        assert isinstance(result, Tensor)
        return result

    @staticmethod
    def _argument(a: Any, given: list[Tensor]) -> Any:
        if not isinstance(a, str):
            return a
        given.append(tensor(a))
        return given[-1]


ROPE: dict[str, Any] = {"a": "a[64, 4, 8]", "pos": "pos[8] I32", "n_dims": 64}
# 5 tokens of 8 heads over 96 cells of 2 heads; the heads of v are half as wide as those of k
FLASH: dict[str, Any] = {
    "q": "q[64, 8, 5]",
    "k": "k[128, 96] F16",
    "v": "v[64, 96] Q8_0",
    "pages": "pages[3, 2] I32",
    "seq": "seq[5] I32",
    "pos": "pos[5] I32",
    "begin": "begin[5] I32",
    "end": "end[5] I32",
    "page_size": 32,
    "scale": 0.125,
}
EXPERTS: dict[str, Any] = {"a": "a[64, 16, 4]", "b": "b[64, 2, 8]", "ids": "ids[2, 8] I32"}
BIASES: dict[str, Any] = {"a": "a[64, 2, 8] F16", "b": "b[64, 4]", "ids": "ids[2, 8] I32"}
SCATTER: dict[str, Any] = {"a": "a[4, 9, 4, 6]", "b": "b[4, 7, 4, 6]", "ids": "ids[7, 2, 3] I32"}
LORA: dict[str, Any] = {
    "a": "a[64, 16]",
    "x": "x[64, 8]",
    "scales": "scales[3, 8]",
    "parts": "parts[16] I32",
}

# 5 tokens of 8 heads over 96 cells
INDEX: dict[str, Any] = {
    "q": "q[64, 8, 5]",
    "k": "k[64, 96] F16",
    "weights": "weights[8, 5]",
    "pages": "pages[3, 2] I32",
    "seq": "seq[5] I32",
    "end": "end[5] I32",
    "page_size": 32,
    "top_k": 4,
}
CELLS: dict[str, Any] = {
    "positions": "positions[4, 5] I32",
    "pages": "pages[3, 2] I32",
    "seq": "seq[5] I32",
    "page_size": 32,
}

CONV: dict[str, Any] = {
    "x": "x[64, 8]",
    "w": "w[4, 64]",
    "states": "states[192, 5]",
    "slots": "slots[2, 8] I32",
}
SCAN: dict[str, Any] = {
    "x": "x[16, 6, 8]",
    "dt": "dt[6, 8]",
    "a": "a[1, 6]",
    "b": "b[32, 2, 8]",
    "c": "c[32, 2, 8]",
    "states": "states[3072, 5]",
    "slots": "slots[2, 8] I32",
}
MAMBA_1: dict[str, Any] = {
    "x": "x[1, 6, 8]",
    "a": "a[32, 6]",
    "b": "b[32, 1, 8]",
    "c": "c[32, 1, 8]",
    "states": "states[192, 5]",
}
DELTA: dict[str, Any] = {
    "q": "q[16, 2, 8]",
    "k": "k[16, 2, 8]",
    "v": "v[16, 6, 8]",
    "g": "g[6, 8]",
    "beta": "beta[6, 8]",
    "states": "states[1536, 5]",
    "slots": "slots[2, 8] I32",
    "interleaved": True,
}
