"""starcoder2: StarCoder 2. LayerNorm, biases everywhere, no gate, windows.

Files have no key for the window; all released models have the same one.
codeshell: CodeShell. There is no window. Files may lack token_embd.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from typing import Final

from ...graph import Tensor, ops
from ..hparams import with_windows
from ..keys import Keys
from .build import GraphBuild, Norm
from .decoder import Decoder
from .layer_build import LayerBuild

N_SWA: Final = 4096


class CodeShell(Decoder):
    """arXiv 2403.15747"""

    name = "codeshell"
    norm = Norm.LAYER

    def embed(self, g: GraphBuild) -> Tensor:
        return g.embed(tied=True)

    def dense(self, b: LayerBuild, x: Tensor) -> Tensor:
        return b.mlp(x, b.shape.n_ff, ops.gelu, self.bias)


class StarCoder2(CodeShell):
    """arXiv 2402.19173"""

    name = "starcoder2"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, n_swa=N_SWA)
