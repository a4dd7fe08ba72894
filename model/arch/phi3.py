"""phi3: Phi-3 and Phi-4. Rope has factors for short and long contexts; layers may have a window.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..hparams import with_windows
from ..keys import Keys
from .longrope import LongRope


class Phi3(LongRope):
    """arXiv 2404.14219"""

    name = "phi3"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp)
