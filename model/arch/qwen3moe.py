"""qwen3moe: Qwen 3 30B-A3B and 235B-A22B. A mixture of experts in every layer.

Tested by tests/model/test_arch_forward.py.
"""

from __future__ import annotations

from .qwen3 import Qwen3


class Qwen3MoE(Qwen3):
    """arXiv 2505.09388"""

    name = "qwen3moe"
    needs_experts = True
