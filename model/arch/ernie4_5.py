"""ernie4_5: ERNIE 4.5 without experts. A llama.

ernie4_5-moe: ERNIE 4.5 with experts. A bias takes part in their choice.
paddleocr: PaddleOCR-VL (text). Rope rotates halves of a head, see qwen2vl.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode
from ..keys import Keys
from .decoder import Decoder
from .experts import read_experts


class Ernie45(Decoder):
    """https://yiyan.baidu.com/blog/publication/ERNIE_Technical_Report.pdf"""

    name = "ernie4_5"
    rope_mode = RopeMode.NORMAL


class Ernie45MoE(Ernie45):
    """https://yiyan.baidu.com/blog/publication/ERNIE_Technical_Report.pdf"""

    name = "ernie4_5-moe"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.experts = read_experts(keys, self.hp, renorm=True)


class PaddleOCR(Ernie45):
    """arXiv 2510.14528"""

    name = "paddleocr"
    rope_mode = RopeMode.NEOX
