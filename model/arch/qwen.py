"""qwen: Qwen 1. Files give twice the width of its feed-forward part.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from dataclasses import replace

from ..keys import Keys
from .qwen2 import Qwen2


class Qwen(Qwen2):
    """arXiv 2309.16609"""

    name = "qwen"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = self.hp.with_layers(lambda _, layer: replace(layer, n_ff=layer.n_ff // 2))
