"""mistral3: Ministral 3. Llama whose queries grow with their position.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import Tensor
from ..keys import Keys
from .base import read_temperature
from .layer_build import LayerBuild
from .llama import Llama
from .longrope import LongRope


class Mistral3(LongRope, Llama):
    """arXiv 2601.08584"""

    name = "mistral3"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.temperature = read_temperature(keys, self.hp)

    def attend(self, b: LayerBuild, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.temperature is not None:
            q = b.tempered(q)
        return super().attend(b, q, k, v)
