"""glm4: GLM-4-0414 and GLM-Z1. Norms before and after each part; half of a head is rotated.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode
from .decoder import SandwichNorms
from .weights import Bias


class GLM4(SandwichNorms):
    """arXiv 2406.12793."""

    name = "glm4"
    rope_mode = RopeMode.NORMAL
    qkv_bias = Bias.OPTIONAL
