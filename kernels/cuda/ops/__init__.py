"""ops: the kernels of each op, a module for each family. Importing this fills the tables."""

from . import (
    activations,
    attention,
    data,
    elementwise,
    heads,
    lora,
    matrix,
    recurrent,
    rope,
    rows,
    sort,
    sparse,
)

__all__ = [
    "activations",
    "attention",
    "data",
    "elementwise",
    "heads",
    "lora",
    "matrix",
    "recurrent",
    "rope",
    "rows",
    "sort",
    "sparse",
]
