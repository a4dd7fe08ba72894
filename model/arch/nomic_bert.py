"""nomic-bert: Nomic Embed 1 and 1.5. BERT with rotated positions and SwiGLU.

nomic-bert-moe: Nomic Embed 2. Some layers have experts without gates.

Tested by tests/model/test_arch_embeddings.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...graph import ops
from ..keys import Keys
from .encoder import PostNormEncoder
from .experts import Experts, Router


class NomicBert(PostNormEncoder):
    """arXiv 2402.01613"""

    name = "nomic-bert"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.is_gated = True


class NomicBertMoE(PostNormEncoder):
    """arXiv 2502.07972"""

    name = "nomic-bert-moe"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        router = Router(renorm=False, scale=keys.factor("expert_weights_scale", 1.0))
        step = keys.count("moe_every_n_layers", 0, low=0)
        experts = EveryFew(router, step=step, ungated=ops.gelu_erf)
        self.experts = experts if self.hp.n_expert and step > 1 else None


@dataclass(frozen=True, slots=True)
class EveryFew(Experts):
    """Experts in the second layer, and in each `step`-th one after it."""

    def are_in(self, il: int) -> bool:
        return il % self.step == 1
