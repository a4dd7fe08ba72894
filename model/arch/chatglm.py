"""chatglm: ChatGLM 2 and 3, GLM-4-9B, GLM-Edge. Half of a head is rotated.

Files have gate and up in one tensor, and those of ChatGLM queries, keys and values as well.
Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode
from .decoder import Decoder


class ChatGLM(Decoder):
    """arXiv 2406.12793"""

    name = "chatglm"
    rope_mode = RopeMode.NORMAL
