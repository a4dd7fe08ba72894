"""spark2_5: Spark 2.5. A gate for each head, and windows with their own rope.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..hparams import with_windows
from ..keys import Keys
from .build import geglu_erf
from .decoder import GatedAttention


class Spark25(GatedAttention):
    """https://github.com/iflytek"""

    name = "spark2_5"
    gate_per_head = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.act = geglu_erf
        self.hp = with_windows(keys, self.hp)
