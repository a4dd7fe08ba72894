"""modern-bert: ModernBERT, Granite Embedding R2. Norms before each part, symmetric windows, GeGLU.

The first layer has no norm before attention. Tested by tests/model/test_arch_embeddings.py.
"""

from __future__ import annotations

from typing import Final

from ...base.errors import UnsupportedModelError
from ...graph import Tensor, ops
from ..hparams import with_windows
from ..keys import Keys
from ..pooling import Pooling
from .build import Gated, GraphBuild, Norm, geglu_erf
from .classifier import classify
from .encoder import Encoder
from .gemma import local_rope
from .layer_build import LayerBuild

ACTIVATIONS: Final[dict[str, Gated]] = {
    **dict.fromkeys(("gelu", "geglu"), geglu_erf),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), ops.geglu),
    **dict.fromkeys(("silu", "swish", "swiglu"), ops.swiglu),
    "reglu": ops.reglu,
}


class ModernBert(Encoder):
    """arXiv 2412.13663"""

    name = "modern-bert"
    norm = Norm.LAYER

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(
            keys, self.hp, period=3, symmetric=True, full_first=True, rope=local_rope
        )
        self.act = read_activation(keys)
        self._classifier_pooling = self._classifier_pooling or Pooling.MEAN

    def embed(self, g: GraphBuild) -> Tensor:
        return g.norm(g.embed(), "token_embd_norm", 0)

    def attn_norm(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.norm(x, "attn_norm", optional=b.il == 0)

    def head(self, g: GraphBuild, x: Tensor, pooling: Pooling) -> Tensor:
        return classify(g, x, len(self.labels), ops.gelu_erf) if pooling is Pooling.RANK else x


def read_activation(keys: Keys) -> Gated:
    """Return the activation of gate and up that a file names."""
    name = keys.text("hidden_activation", "gelu")
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"{keys.path}: {keys.full('hidden_activation')} {name!r} is not supported, "
            f"only: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
