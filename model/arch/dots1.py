"""dots1: dots.llm1. Qwen 3's attention, experts as in DeepSeek-V3.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .decoder import QKNorm, SigmoidExperts


class Dots1(SigmoidExperts, QKNorm):
    """arXiv 2506.05767"""

    name = "dots1"
