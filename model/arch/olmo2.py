"""olmo2: OLMo 2 and 3. Norms are after each part; OLMo 3 has windows.

YaRN is for layers without windows only. Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..hparams import Rope, with_windows
from ..keys import Keys
from .decoder import PostNorms, WideQKNorm


class Olmo2(WideQKNorm, PostNorms):
    """arXiv 2501.00656, 2512.13961"""

    name = "olmo2"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=4, rope=Rope.plain)
