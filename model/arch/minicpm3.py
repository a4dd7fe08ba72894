"""minicpm3: MiniCPM 3. MiniCPM's factors, and latent attention with latent queries.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode, Tensor
from ..keys import Keys
from .layer_build import LayerBuild
from .minicpm import MiniCPM
from .mla import ExpandedMLA


class MiniCPM3(ExpandedMLA, MiniCPM):
    """https://github.com/OpenBMB/MiniCPM"""

    name = "minicpm3"
    rope_mode = RopeMode.NEOX
    query = "attn_q_b"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.q_lora_rank = keys.count("attention.q_lora_rank")

    def queries(self, b: LayerBuild, x: Tensor) -> Tensor:
        return super().queries(
            b, b.norm(b.linear(x, "attn_q_a", self.q_lora_rank), "attn_q_a_norm")
        )
