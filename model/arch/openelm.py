"""openelm: OpenELM. Heads and feed-forward widths grow from layer to layer.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .decoder import QKNorm


class OpenELM(QKNorm):
    """arXiv 2404.14619"""

    name = "openelm"
