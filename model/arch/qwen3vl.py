"""qwen3vl: Qwen 3-VL (text). A qwen3.

qwen3vlmoe: Qwen 3-VL with experts (text). A qwen3moe.
In text, the positions of all sections of a head are equal, as in qwen2vl.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .qwen3 import Qwen3
from .qwen3moe import Qwen3MoE


class Qwen3VL(Qwen3):
    """arXiv 2511.21631"""

    name = "qwen3vl"


class Qwen3VLMoE(Qwen3MoE):
    """arXiv 2511.21631"""

    name = "qwen3vlmoe"
