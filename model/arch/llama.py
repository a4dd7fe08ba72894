"""llama: Llama 1 to 3, Mistral, Mixtral, SmolLM 1 and 2, TinyLlama. The base of many others.

Files have the rows of Q and K reordered, so that rope rotates adjacent pairs. Llama 3.1's rope
scaling is the tensor rope_freqs.weight. Tested by tests/model/test_arch_forward.py.
"""

from __future__ import annotations

from ...graph import RopeMode
from .decoder import Decoder


class Llama(Decoder):
    """arXiv 2302.13971, 2407.21783, 2310.06825, 2401.04088"""

    name = "llama"
    rope_mode = RopeMode.NORMAL
