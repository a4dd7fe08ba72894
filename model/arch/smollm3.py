"""smollm3: SmolLM 3. Every fourth layer has no rope.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..keys import Keys
from .llama import Llama


class SmolLM3(Llama):
    """https://huggingface.co/blog/smollm3

    Layers without rope: arXiv 2501.18795.
    """

    name = "smollm3"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = self.hp.with_rope_in([il for il in range(self.hp.n_layer) if (il + 1) % 4])
