"""qwen2vl: Qwen 2-VL and 2.5-VL (text). A qwen2.

`rope.dimension_sections` divides a head's elements between three positions of an image's part. In
text they are equal, so the rotation is the usual one. Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .qwen2 import Qwen2


class Qwen2VL(Qwen2):
    """arXiv 2409.12191"""

    name = "qwen2vl"
