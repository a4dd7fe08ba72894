"""bailingmoe: Ling and Ring 1. A llama with DeepSeekMoE's experts.

bailingmoe2: Ling and Ring 2. Norms of heads, and experts as in DeepSeek-V3.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .decoder import QKNorm, SigmoidExperts
from .deepseek import DeepSeek


class BailingMoE(DeepSeek):
    """arXiv 2503.05139"""

    name = "bailingmoe"


class BailingMoE2(SigmoidExperts, QKNorm):
    """arXiv 2510.22115"""

    name = "bailingmoe2"
