"""seed_oss: Seed-OSS. A llama with biases of queries, keys and values.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .decoder import Decoder
from .weights import Bias


class SeedOSS(Decoder):
    """huggingface.co/ByteDance-Seed/Seed-OSS-36B-Instruct."""

    name = "seed_oss"
    qkv_bias = Bias.OPTIONAL
    bias = Bias.OPTIONAL
    ffn_norm = "post_attention_norm"
