"""hy_v3: Hunyuan 3. Qwen 3's attention, experts as in DeepSeek-V3.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from dataclasses import replace

from ..keys import Keys
from .decoder import QKNorm, SigmoidExperts


class HyV3(SigmoidExperts, QKNorm):
    """https://github.com/Tencent-Hunyuan

    No key tells how many of the first layers are dense: they lack the router.
    """

    name = "hy_v3"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        routers = [f"blk.{il}.ffn_gate_inp.weight" for il in range(self.hp.n_layer)]
        n_dense = next((il for il, name in enumerate(routers) if name in keys.file.tensors), 0)
        self.experts = replace(self.experts, n_dense=n_dense)
