"""baichuan: Baichuan 1 and 2. A llama; the 13B models have ALiBi in place of rope.

No key tells them apart, only the number of layers.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from typing import Final

from ...graph import Tensor
from ..keys import Keys
from .layer_build import LayerBuild
from .llama import Llama

N_LAYER_13B: Final = 40


class Baichuan(Llama):
    """arXiv 2309.10305"""

    name = "baichuan"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.max_bias = 8.0 if self.hp.n_layer == N_LAYER_13B else 0.0
        if self.max_bias:
            self.hp = self.hp.with_rope_in(())

    def attend(self, b: LayerBuild, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return b.attend(q, k, v, max_bias=self.max_bias)
