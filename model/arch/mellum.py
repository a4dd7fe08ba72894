"""mellum: JetBrains Mellum 2. Qwen 3's experts with windows; YaRN in layers without one only.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..hparams import read_windows, with_swa
from ..keys import Keys
from .qwen3moe import Qwen3MoE


class Mellum(Qwen3MoE):
    """https://huggingface.co/JetBrains"""

    name = "mellum"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        windows = read_windows(keys, self.hp.n_layer, period=4)
        self.hp = with_swa(keys, self.hp, windows, base=keys.positive("rope.freq_base", 10000.0))
