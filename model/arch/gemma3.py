"""gemma3: Gemma 3. Five layers with a window, and their own rope, to each one without.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from typing import ClassVar

from ..hparams import with_windows
from ..keys import Keys
from .decoder import QKNorm, SandwichNorms
from .gemma import Gemma, local_rope


class Gemma3(QKNorm, SandwichNorms, Gemma):
    """arXiv 2503.19786"""

    name = "gemma3"
    symmetric_windows: ClassVar[bool] = False

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(
            keys, self.hp, period=6, symmetric=self.symmetric_windows, rope=local_rope
        )
        self.scale = self.scale_of(largest=62)
