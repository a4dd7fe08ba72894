"""mellum: JetBrains Mellum 2. Qwen 3's experts with windows; YaRN in layers without one only.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..hparams import Rope, with_windows
from ..keys import Keys
from .qwen3moe import Qwen3MoE


class Mellum(Qwen3MoE):
    """https://huggingface.co/JetBrains"""

    name = "mellum"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=4, rope=Rope.plain)
