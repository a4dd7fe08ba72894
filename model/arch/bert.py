"""bert: BERT, RoBERTa, BGE, MiniLM, E5, GTE, BGE-M3 and its reranker. Learned positions.

Tested by tests/model/test_arch_embeddings.py.
"""

from __future__ import annotations

from ...graph import Tensor
from ..keys import Keys
from .build import GraphBuild
from .encoder import PostNormEncoder


class Bert(PostNormEncoder):
    """arXiv 1810.04805"""

    name = "bert"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = self.hp.with_rope_in(())

    def embeddings(self, g: GraphBuild) -> Tensor:
        return g.add_positions(super().embeddings(g))

    def max_ctx(self) -> int | None:
        return self.hp.n_ctx_train
