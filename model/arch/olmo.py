"""olmo: OLMo. Its norms have no weights, and queries, keys and values may be limited.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode
from .build import Norm
from .decoder import ClampedQKV, NormsWithoutWeights


class Olmo(NormsWithoutWeights, ClampedQKV):
    """arXiv 2402.00838"""

    name = "olmo"
    norm = Norm.LAYER
    rope_mode = RopeMode.NORMAL
