"""gpt2: GPT-2. Learned positions, LayerNorm, biases everywhere, no gate.

starcoder: StarCoder. One head of keys and values.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor, ops
from ..keys import Keys
from .build import GraphBuild, Norm
from .decoder import Decoder
from .layer_build import LayerBuild
from .weights import Bias


class GPT2(Decoder):
    """https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf"""

    name = "gpt2"
    norm = Norm.LAYER
    qkv_bias = Bias.REQUIRED
    bias = Bias.REQUIRED

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = self.hp.with_rope_in(())

    def embed(self, g: GraphBuild) -> Tensor:
        return g.add_positions(g.embed())

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, ops.gelu, self.bias)

    def max_ctx(self) -> int | None:
        return self.hp.n_ctx_train


class StarCoder(GPT2):
    """arXiv 2305.06161"""

    name = "starcoder"
