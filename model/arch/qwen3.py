"""qwen3: the query and key of each head are normalized, and there are no biases.

Tested by tests/model/test_arch_forward.py.
"""

from __future__ import annotations

from ...graph import RopeMode
from .base import Decoder


class Qwen3(Decoder):
    """arXiv 2505.09388."""

    name = "qwen3"
    rope_mode = RopeMode.NEOX
    qk_norm = True
