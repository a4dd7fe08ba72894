"""gemma: Gemma. Embeddings are scaled, and the activation of the feed-forward part is GELU.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from ...graph import Tensor, ops
from ..hparams import Rope
from ..keys import Keys
from .build import GraphBuild, softcapped
from .decoder import Decoder


class Gemma(Decoder):
    """arXiv 2403.08295

    Attributes:
        default_cap: the soft cap of logits for files that have no key for it; 0: there is none.
        final_cap: the soft cap of logits.
    """

    name = "gemma"
    default_cap: ClassVar[float] = 0.0

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.act = ops.geglu
        cap = "final_logit_softcapping"
        self.final_cap = keys.factor(cap, 0.0) if cap in keys else self.default_cap

    def embed(self, g: GraphBuild) -> Tensor:
        return ops.scale(g.embed(), math.sqrt(self.hp.n_embd))

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        return softcapped(super().logits(g, x), self.final_cap)

    def scale_of(self, largest: int) -> float | None:
        """Return the factor of scores. In models of `largest` layers, 1 / sqrt(n_embd / n_head).

        No key of a file says this (google/gemma_pytorch, config.py, query_pre_attn_scalar).
        """
        n_head = self.hp.layers[0].n_head
        return 1 / math.sqrt(self.hp.n_embd // n_head) if self.hp.n_layer == largest else None


def local_rope(rope: Rope) -> Rope:
    """Return the rotation of layers with a window (Gemma 3): a base of its own, not scaled."""
    return replace(rope.plain(), freq_base=10000.0)
