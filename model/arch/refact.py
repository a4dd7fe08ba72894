"""refact: Refact 1.6B. A llama with ALiBi.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .decoder import ALiBi


class Refact(ALiBi):
    """https://huggingface.co/smallcloudai/Refact-1_6B-fim"""

    name = "refact"
