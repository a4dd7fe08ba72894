"""dbrx: DBRX. LayerNorm, limited queries, keys and values, and experts.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .build import Norm
from .decoder import ClampedQKV


class DBRX(ClampedQKV):
    """https://www.databricks.com/blog/introducing-dbrx-new-state-art-open-llm"""

    name = "dbrx"
    norm = Norm.LAYER
    needs_experts = True
    ffn_norm = "attn_output_norm"
