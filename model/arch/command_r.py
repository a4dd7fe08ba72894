"""command-r: Command R and R+, Aya. Attention and feed-forward side by side, and a logit scale.

R+ normalizes queries and keys.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode, Tensor, ops
from ..keys import Keys
from .build import GraphBuild, Norm
from .decoder import Parallel, QKNormOfEachHead


class CommandR(QKNormOfEachHead, Parallel):
    """https://huggingface.co/CohereLabs/c4ai-command-r-v01

    The parallel layer is that of PaLM (arXiv 2204.02311).
    """

    name = "command-r"
    norm = Norm.LAYER
    rope_mode = RopeMode.NORMAL

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.logit_scale = keys.factor("logit_scale", 1.0)

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        return ops.scale(super().logits(g, x), self.logit_scale)
