"""gemma3: Gemma 3. Five layers with a window, and their own rope, to each one without.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..hparams import read_windows, with_swa
from ..keys import Keys
from .decoder import QKNorm, SandwichNorms
from .gemma import Gemma


class Gemma3(QKNorm, SandwichNorms, Gemma):
    """arXiv 2503.19786."""

    name = "gemma3"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        windows = read_windows(keys, self.hp.n_layer, period=6)
        self.hp = with_swa(keys, self.hp, windows, base=10000.0)
        self.scale = self.scale_of(largest=62)
