"""cohere2: Command R7B and A. Layers with a window have rope, those without have none.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..hparams import read_windows, with_swa
from ..keys import Keys
from .command_r import CommandR


class Cohere2(CommandR):
    """arXiv 2504.00698."""

    name = "cohere2"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        windows = read_windows(keys, self.hp.n_layer, period=4)
        self.hp = with_swa(keys, self.hp, windows).with_rope_in_windows()
