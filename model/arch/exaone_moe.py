"""exaone-moe: K-EXAONE. Layers with a window have rope, those without have none. DeepSeek-V3's
experts.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..hparams import with_windows
from ..keys import Keys
from .decoder import QKNorm, SigmoidExperts


class ExaoneMoE(SigmoidExperts, QKNorm):
    """arXiv 2601.01739"""

    name = "exaone-moe"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=4, n_swa=128, full_rope=False)
