"""cohere2: Command R7B, Command A. Layers with a window have rope, those without have none.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..hparams import with_windows
from ..keys import Keys
from .command_r import CommandR


class Cohere2(CommandR):
    """arXiv 2504.00698"""

    name = "cohere2"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=4, full_rope=False)
