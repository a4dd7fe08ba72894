"""gemma-embedding: EmbeddingGemma. Gemma 3 with symmetric windows.

Files may have two matrices that follow pooling. Tested by tests/model/test_arch_embeddings.py.
"""

from __future__ import annotations

from ...graph import Op, Tensor, ops
from ..keys import Keys
from ..pooling import Pooling
from .build import GraphBuild
from .encoder import Encoder
from .gemma3 import Gemma3


class GemmaEmbedding(Encoder, Gemma3):
    """arXiv 2509.20354"""

    name = "gemma-embedding"
    symmetric_windows = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        n_embd = self.hp.n_embd
        self.dense_sizes = {
            "dense_2": (n_embd, keys.count("dense_2_feat_out", n_embd)),
            "dense_3": (keys.count("dense_3_feat_in", n_embd), n_embd),
        }

    def head(self, g: GraphBuild, x: Tensor, pooling: Pooling) -> Tensor:
        if pooling is Pooling.RANK:
            return super().head(g, x, pooling)
        for name, ne in self.dense_sizes.items():
            weight = g.weight(f"{name}.weight", ne, self.hp.n_layer, Op.MUL_MAT, required=False)
            x = x if weight is None else ops.mul_mat(weight, x)
        return x
