"""plamo: PLaMo 13B. A llama with attention and feed-forward side by side.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .decoder import Parallel


class PLaMo(Parallel):
    """https://huggingface.co/pfnet/plamo-13b"""

    name = "plamo"
