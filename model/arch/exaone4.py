"""exaone4: EXAONE 4. Norms are after each part; the 32B model has windows.

With windows, the layers without one have no rope.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from typing import Final

from ..hparams import with_windows
from ..keys import Keys
from .decoder import PostNorms, QKNorm

N_LAYER_32B: Final = 64  # old files of this size lack the key of its window


class Exaone4(QKNorm, PostNorms):
    """arXiv 2507.11407"""

    name = "exaone4"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        n_swa = 4096 if self.hp.n_layer == N_LAYER_32B else 0
        self.hp = with_windows(keys, self.hp, period=4, n_swa=n_swa, full_rope=False)
