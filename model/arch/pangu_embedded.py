"""pangu-embedded: openPangu Embedded. A qwen2 with biases in more places.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .decoder import Decoder
from .weights import Bias


class PanguEmbedded(Decoder):
    """arXiv 2505.22375"""

    name = "pangu-embedded"
    output_bias = Bias.OPTIONAL
