"""mistral4: Mistral Small 4. DeepSeek 2's attention and experts.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .deepseek2 import DeepSeek2


class Mistral4(DeepSeek2):
    """https://huggingface.co/mistralai"""

    name = "mistral4"
