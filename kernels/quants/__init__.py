"""quants: the layouts of blocks of quantized types, and the usual types of weights."""

from typing import Final

from ...graph.types import GGMLType
from .layouts import LAYOUTS

# the usual types of weights: a backend should have fast products for them
WEIGHT_TYPES: Final = (
    *(GGMLType.Q4_0, GGMLType.Q5_0, GGMLType.Q8_0, GGMLType.IQ4_NL, GGMLType.Q4_1, GGMLType.Q5_1),
    *(GGMLType.MXFP4, GGMLType.NVFP4),
    *(GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K, GGMLType.Q3_K, GGMLType.Q2_K),
    *(GGMLType.F16, GGMLType.BF16, GGMLType.F32),
)

__all__ = ["LAYOUTS", "WEIGHT_TYPES"]
