"""orion: Orion 14B. A llama with LayerNorm.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .build import Norm
from .decoder import Decoder


class Orion(Decoder):
    """arXiv 2401.12246"""

    name = "orion"
    norm = Norm.LAYER
