"""laguna: Poolside Laguna. Gated attention, heads that differ by layer, windows and experts.

The gate has a factor for each head or for each element; its tensor tells. YaRN is in layers without
a window only. Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph.op import UnaryOp
from ..hparams import Rope, with_windows
from ..keys import Keys
from .decoder import GatedAttention, QKNorm, SigmoidExperts


class Laguna(SigmoidExperts, GatedAttention, QKNorm):
    """https://huggingface.co/poolside"""

    name = "laguna"
    gate_act = UnaryOp.SOFTPLUS

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.hp = with_windows(keys, self.hp, period=4, full_first=True, rope=Rope.plain)
        gate = keys.file.tensors.get("blk.0.attn_gate.weight")
        self.gate_per_head = gate is None or gate.ne[-1] == self.hp.layers[0].n_head
