"""qwen3: Qwen 3. The query and key of each head are normalized, and there are no biases.

Tested by tests/model/test_arch_forward.py.
"""

from __future__ import annotations

from .decoder import QKNorm


class Qwen3(QKNorm):
    """arXiv 2505.09388"""

    name = "qwen3"
