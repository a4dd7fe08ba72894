"""qwen2: Qwen 1.5, 2 and 2.5. Queries, keys and values have biases.

Tested by tests/model/test_arch_forward.py.
"""

from __future__ import annotations

from .decoder import Decoder


class Qwen2(Decoder):
    """arXiv 2407.10671"""

    name = "qwen2"
