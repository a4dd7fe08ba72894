"""jina-bert-v2: Jina Embeddings 2 and Jina Reranker 1. BERT with ALiBi.

Files have a gate as a tensor, as half of ffn_up, or none. Those for code have further norms.
jina-bert-v3: Jina Embeddings 3. BERT with rotated positions.

Tested by tests/model/test_arch_embeddings.py.
"""

from __future__ import annotations

from ...graph import Tensor
from ..keys import Keys
from ..pooling import Pooling
from .build import GraphBuild, geglu_erf
from .classifier import dense_layer
from .decoder import ALiBi
from .encoder import PostNormEncoder
from .layer_build import LayerBuild


class JinaBertV2(ALiBi, PostNormEncoder):
    """arXiv 2310.19923"""

    name = "jina-bert-v2"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.act = geglu_erf
        tensors, n_ff = keys.file.tensors, self.hp.layers[0].n_ff
        up = tensors.get("blk.0.ffn_up.weight")
        is_double = up is not None and up.ne[1:] == (2 * n_ff,)
        self.is_gated = is_double or "blk.0.ffn_gate.weight" in tensors

    def rotated(self, b: LayerBuild, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (b.norm(x, f"attn_{kind}_norm", optional=True) for x, kind in ((q, "q"), (k, "k")))
        return super().rotated(b, q, k)

    def attended(self, b: LayerBuild, y: Tensor, x: Tensor) -> Tensor:
        y = super().attended(b, y, x)
        again = b.add(y, x, "attn_residual_2")
        normed = b.norm(again, "attn_norm_2", optional=True)
        return y if normed is again else normed

    def head(self, g: GraphBuild, x: Tensor, pooling: Pooling) -> Tensor:
        return dense_layer(g, x, 1) if pooling is Pooling.RANK else x


class JinaBertV3(PostNormEncoder):
    """arXiv 2409.10173"""

    name = "jina-bert-v3"
