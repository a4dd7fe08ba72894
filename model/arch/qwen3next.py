"""qwen3next: Qwen 3 Next. Gated delta nets in most layers, gated attention in the others; experts.

qwen35: Qwen 3.5. The same without experts, and with another order of heads.
qwen35moe: Qwen 3.5 with experts.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from typing import ClassVar

from ...graph import Tensor, ops
from ...graph.op import UnaryOp
from ..keys import Keys
from .decoder import QKNorm
from .experts import read_experts
from .layer_build import LayerBuild
from .recurrent import SSM, DeltaNet, with_states, without_attention


class Qwen35(QKNorm):
    """https://qwen.ai/blog?id=qwen3.5

    Attributes:
        joint: see `DeltaNet`.
        delta: the delta net of layers without attention.
    """

    name = "qwen35"
    ffn_norm = "post_attention_norm"
    joint: ClassVar[bool] = False

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        ssm = SSM.read(keys)
        if ssm.d_inner != ssm.n_rank * ssm.d_state:
            wanted = ssm.n_rank * ssm.d_state
            keys.fail("ssm.inner_size", ssm.d_inner, f"must be {wanted}, heads of the state size")
        self.delta = DeltaNet(ssm, interleaved=not self.joint, joint=self.joint)
        layers = _recurrent_layers(keys, self.hp.n_layer)
        self.hp = with_states(without_attention(self.hp, layers), layers, self.delta.sizes)
        if self.hp.n_expert:
            self.experts = read_experts(keys, self.hp, renorm=True, shared_gate=True)

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        if b.shape.states:
            return self.delta.build(b, x)
        size, n_head = b.shape.head_dim_k, b.shape.n_head
        both = b.heads(b.linear(x, "attn_q", 2 * size * n_head), 2 * size)
        q, gate = (
            ops.view(both, (size, *both.ne[1:3]), both.nb, i * size * both.nb[0]) for i in range(2)
        )
        k, v = b.one_of_qkv(x, "k"), b.named(b.one_of_qkv(x, "v"), "Vcur")
        q = self.rope(b, b.norm(q, "attn_q_norm"), "Qcur")
        k = self.rope(b, b.norm(b.heads(k), "attn_k_norm"), "Kcur")
        y = self.attend(b, q, k, v)
        gate = ops.unary(ops.cont(gate), UnaryOp.SIGMOID)
        return self.project(b, ops.mul(y, ops.reshape(gate, y.ne)))


class Qwen35MoE(Qwen35):
    """https://qwen.ai/blog?id=qwen3.5"""

    name = "qwen35moe"
    needs_experts = True


class Qwen3Next(Qwen35):
    """https://qwen.ai/blog?id=qwen3-next"""

    name = "qwen3next"
    needs_experts = True
    joint = True


def _recurrent_layers(keys: Keys, n_layer: int) -> list[int]:
    """Return the layers without attention. Without the key, every few layers have some."""
    interval = keys.count("full_attention_interval", 4)
    if "attention.recurrent_layers" in keys:
        found = keys.flags("attention.recurrent_layers", n_layer)
        return [il for il, is_recurrent in enumerate(found) if is_recurrent]
    return [il for il in range(n_layer) if (il + 1) % interval]
