"""plamo2: PLaMo 2. Mamba 2 whose steps, B and C have norms, and attention; norms around each part.

Tested by tests/model/test_arch_states.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...graph import Op, Tensor, ops
from ..keys import Keys
from .decoder import QKNormOfEachHead, SandwichNorms
from .layer_build import LayerBuild
from .recurrent import SSM, convolved, part, with_states, without_attention
from .weights import Bias


@dataclass(frozen=True, slots=True)
class PLaMoMixer:
    """A Mamba 2 whose steps, B and C are products of the convolved inputs, as in Mamba 1.

    Attributes:
        ssm: its sizes: heads, with one group.
        n_rank: elements of the low-rank steps.
    """

    ssm: SSM
    n_rank: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The elements of a layer's states."""
        s = self.ssm
        return ((s.n_conv - 1) * s.d_inner, s.d_state * s.d_inner)

    def build(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the mixed tokens of x [n_embd, n_tokens]."""
        s, n_head, size = self.ssm, self.ssm.n_rank, self.ssm.d_inner // self.ssm.n_rank
        zx = b.heads(b.named(b.linear(x, "ssm_in", 2 * s.d_inner), "ssm_in"), 2 * size)
        z, x = (
            ops.view(zx, (size, n_head, x.ne[1]), zx.nb, begin * zx.nb[0]) for begin in (0, size)
        )
        x = ops.reshape(ops.cont(x), (s.d_inner, x.ne[2]))
        x = ops.silu(convolved(b, x, "ssm_conv1d", s.n_conv))
        rows = b.named(b.linear(x, "ssm_x", self.n_rank + 2 * s.d_state), "ssm_x")
        bs, cs, dt = (
            b.bare_norm(part(rows, begin, n), name)
            for begin, n, name in (
                (0, s.d_state, "ssm_b_norm"),
                (s.d_state, s.d_state, "ssm_c_norm"),
                (2 * s.d_state, self.n_rank, "ssm_dt_norm"),
            )
        )
        y = ops.ssm_scan(
            part(x, 0, size, n_head),
            b.named(b.linear(dt, "ssm_dt", n_head, Bias.REQUIRED), "ssm_dt"),
            ops.reshape(b.required("ssm_a", (n_head,), Op.MUL), (1, n_head)),
            part(bs, 0, s.d_state, 1),
            part(cs, 0, s.d_state, 1),
            b.states[1],
            b.slots,
            b.required("ssm_d", (n_head,), Op.MUL),
        )
        y = ops.reshape(ops.swiglu(z, b.named(y, "ssm_scan")), x.ne[:2])
        return b.named(b.linear(y, "ssm_out", b.hp.n_embd), "ssm_out")


class PLaMo2(SandwichNorms, QKNormOfEachHead):
    """https://huggingface.co/pfnet/plamo-2-8b

    The model's own code gives attention a window (`attention_window_size`), except in some layers.
    Files do not have it. As in llama.cpp, tokens see all earlier ones.
    """

    name = "plamo2"
    lacks_parts = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        ssm = SSM.read(keys)
        if ssm.n_group > 1:
            keys.fail("ssm.group_count", ssm.n_group, "must be 0 or 1")
        self.mamba = PLaMoMixer(ssm, max(64, self.hp.n_embd // 16))  # files have no key for it
        layers = [il for il, layer in enumerate(self.hp.layers) if not layer.n_head_kv]
        self.hp = with_states(without_attention(self.hp, layers), layers, self.mamba.sizes)

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        return self.mamba.build(b, x) if b.shape.states else super().attention(b, x)

    def post_norm(self, b: LayerBuild, y: Tensor, name: str) -> Tensor:
        return b.bare_norm(y, name)
