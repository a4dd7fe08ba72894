"""ops: the kernels, a module for each family. Importing this fills the tables of ops and chains."""

from . import (
    activations,
    attention,
    data,
    delta_net,
    elementwise,
    fused_norms,
    fused_rope,
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
    "delta_net",
    "elementwise",
    "fused_norms",
    "fused_rope",
    "lora",
    "matrix",
    "recurrent",
    "rope",
    "rows",
    "sort",
    "sparse",
]
