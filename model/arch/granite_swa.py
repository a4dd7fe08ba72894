"""granite_swa: Granite with windows. Sinks, with or without experts.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ..hparams import with_windows
from ..keys import Keys
from .decoder import Sinks
from .granite import Granite


class GraniteSWA(Sinks, Granite):
    """https://github.com/ibm-granite"""

    name = "granite_swa"

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp)
        if keys.is_array("attention.rope_pattern"):
            has_rope = keys.flags("attention.rope_pattern", self.hp.n_layer)
            self.hp = self.hp.with_rope_in([il for il, has in enumerate(has_rope) if has])
