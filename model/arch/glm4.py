"""glm4: GLM-4-0414, GLM-Z1, GLM-4.1V (text). Norms before and after each part.

Half of a head is rotated. Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode
from ..keys import Keys
from .decoder import SandwichNorms


class GLM4(SandwichNorms):
    """arXiv 2406.12793, 2507.01006"""

    name = "glm4"
    rope_mode = RopeMode.NORMAL

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        if keys.is_array(
            "rope.dimension_sections"
        ):  # such files have the rows of Q and K reordered
            self.rope_mode = RopeMode.NEOX
