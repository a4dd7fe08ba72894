"""Factors of rope frequencies for short and for long contexts (LongRoPE, arXiv 2402.13753).

Files have two tensors of factors. A context that is larger than the original one uses the long
factors, from its first token on. Tested by tests/model/test_arch_longrope.py.
"""

from __future__ import annotations

from typing import Final

from ...graph import Tensor
from ..keys import Keys
from .decoder import Decoder
from .layer_build import LayerBuild

LONG: Final = "rope_factors_long.weight"
SHORT: Final = "rope_factors_short.weight"


class LongRope(Decoder):
    """A decoder whose files may have long and short factors.

    Attributes:
        n_ctx_orig: the largest context that uses the short factors; None: the file has no factors.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        has_factors = LONG in keys.file.tensors and SHORT in keys.file.tensors
        key = "rope.scaling.original_context_length"
        n_ctx_orig = keys.count(key, self.hp.n_ctx_train)
        self.n_ctx_orig: int | None = n_ctx_orig if has_factors else None

    def rope(self, b: LayerBuild, x: Tensor, name: str) -> Tensor:
        if self.n_ctx_orig is None:
            return super().rope(b, x, name)
        short, long = b.rope_factors(SHORT), b.rope_factors(LONG)
        return b.rope(x, name, self.rope_mode, long if b.g.n_ctx > self.n_ctx_orig else short)

    def max_default_ctx(self) -> int | None:
        return self.n_ctx_orig

    def describe(self, n_ctx: int) -> str:
        if self.n_ctx_orig is None:
            return super().describe(n_ctx)
        if n_ctx > self.n_ctx_orig:
            return f"long factors of rope, for contexts above {self.n_ctx_orig}"
        return f"short factors of rope, for contexts up to {self.n_ctx_orig}"
