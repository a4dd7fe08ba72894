"""internlm2: InternLM 2 and 2.5. A llama.

xverse: XVERSE. A llama.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .llama import Llama


class InternLM2(Llama):
    """arXiv 2403.17297"""

    name = "internlm2"


class XVERSE(Llama):
    """https://huggingface.co/xverse/XVERSE-13B"""

    name = "xverse"
