"""llama4: Llama 4. Three layers with rope and chunked attention to each full one without rope.

The experts' weights are factors of their inputs. Tested by tests/model/test_arch_golden.py and
test_arch_chunks.py.
"""

from __future__ import annotations

from typing import Final

from ...graph import Tensor
from ..hparams import with_windows
from ..keys import Keys
from .base import Temperature
from .experts import Experts, Gating, read_router
from .layer_build import LayerBuild
from .llama import Llama

PERIOD: Final = 4
CHUNK: Final = 8192  # no key of a file has it


class Llama4(Llama):
    """https://ai.meta.com/blog/llama-4-multimodal-intelligence"""

    name = "llama4"
    needs_experts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        hp = with_windows(keys, self.hp, PERIOD, n_swa=CHUNK, chunked=True)
        if any(layer.window for layer in hp.layers):
            hp = hp.with_rope_in([il for il in range(hp.n_layer) if (il + 1) % PERIOD])
            if hp.n_layer >= PERIOD:  # a layer without rope
                self.temperature = Temperature(0.1, CHUNK, offset=1)
        self.hp = hp
        self.qk_norm = hp.n_expert != 128  # Maverick's queries and keys are not normalized
        self.experts = Experts(
            read_router(keys, Gating.SIGMOID),
            step=keys.count("interleave_moe_layer_step"),
            n_ff_shared=hp.n_ff_exp,
            weigh_input=True,
        )

    def rope(self, b: LayerBuild, x: Tensor, name: str) -> Tensor:
        y = super().rope(b, x, name)
        return b.g.normed(y) if self.qk_norm and b.shape.rope else y

    def attend(self, b: LayerBuild, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.temperature is not None and b.shape.rope is None:
            q = b.tempered(q)
        return super().attend(b, q, k, v)
