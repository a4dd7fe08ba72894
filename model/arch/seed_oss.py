"""seed_oss: Seed-OSS. A llama with biases of queries, keys and values.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .decoder import Decoder


class SeedOSS(Decoder):
    """https://huggingface.co/ByteDance-Seed/Seed-OSS-36B-Instruct"""

    name = "seed_oss"
    ffn_norm = "post_attention_norm"
