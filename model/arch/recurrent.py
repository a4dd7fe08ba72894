"""Blocks of layers with states: short convolutions, Mamba 1 and 2, gated delta nets.

A layer declares the sizes of its states with `with_states`; a block takes them from the graph.
Tensors have llama.cpp's names. Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from ...graph import Op, Tensor, ops
from ...graph.op import UnaryOp
from ..hparams import HParams
from ..keys import Keys
from .layer_build import LayerBuild
from .weights import Bias

L2_EPS: Final = 1e-6  # of the norm of a delta net's queries and keys


def with_states(hp: HParams, layers: Collection[int], sizes: tuple[int, ...]) -> HParams:
    """Return the same shape with states of these sizes in some layers."""
    return hp.with_layers(lambda il, x: replace(x, states=sizes) if il in layers else x)


def without_attention(hp: HParams, layers: Collection[int]) -> HParams:
    """Return the same shape with layers that have no keys and values."""
    return hp.with_layers(
        lambda il, x: replace(x, n_head=0, n_head_kv=0, rope=None) if il in layers else x
    )


def part(x: Tensor, begin: int, *ne: int) -> Tensor:
    """Return a view of each row of x [n, n_tokens]: the elements from `begin` on, shaped `ne`."""
    size = x.nb[0]
    nb = [size]
    for n in ne[:-1]:
        nb.append(nb[-1] * n)
    return ops.view(x, (*ne, x.ne[1]), (*nb[: len(ne)], x.nb[1]), begin * size)


def convolved(
    b: LayerBuild, x: Tensor, name: str, width: int, bias: Bias = Bias.NONE, *, state: int = 0
) -> Tensor:
    """Return the causal convolution of each channel of x [n, n_tokens]. `state` is the number of
    its state among the layer's."""
    full, n = f"{name}.weight", x.ne[0]
    w = b.required(full, (width, n), Op.SSM_CONV)
    found = None
    if bias is not Bias.NONE:
        kind, required = f"blk.{b.il}.{name}.bias", bias is Bias.REQUIRED
        found = b.g.weight(kind, (n,), b.il, Op.ADD, required=required)
    return b.named(ops.ssm_conv(x, w, b.states[state], b.slots, found), f"{name}_out")


def over_l2_norm(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of a delta net's queries and keys [d, n_head, n_tokens] over their L2 norms;
    those of queries also over sqrt(d)."""
    d = q.ne[0]
    q, k = ops.rms_norm(q, L2_EPS / d), ops.rms_norm(k, L2_EPS / d)
    return ops.scale(q, 1.0 / d), ops.scale(k, 1.0 / math.sqrt(d))


@dataclass(frozen=True, slots=True)
class ShortConv:
    """LFM2's gated convolution (arXiv 2511.23404). `width`: of the convolution, in tokens."""

    width: int

    def sizes(self, n_embd: int) -> tuple[int, ...]:
        """Return the elements of a layer's states."""
        return ((self.width - 1) * n_embd,)

    def build(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the mixed tokens of x [n_embd, n_tokens]."""
        n = b.hp.n_embd
        parts = b.named(b.linear(x, "shortconv.in_proj", 3 * n), "shortconv_in")
        gate, out_gate, x = (part(parts, i * n, n) for i in range(3))
        y = convolved(b, ops.mul(gate, x), "shortconv.conv", self.width)
        y = b.named(ops.mul(y, out_gate), "shortconv_gated")
        return b.named(b.linear(y, "shortconv.out_proj", n), "shortconv_out")


@dataclass(frozen=True, slots=True)
class SSM:
    """The sizes of a state space layer, from the keys `ssm.*`.

    Attributes:
        n_conv: the width of the convolution, in tokens.
        d_inner: channels.
        d_state: elements of a channel's state.
        n_rank: Mamba 1: elements of the low-rank steps; else heads.
        n_group: groups of heads with the same B and C.
    """

    n_conv: int
    d_inner: int
    d_state: int
    n_rank: int
    n_group: int

    @classmethod
    def read(cls, keys: Keys, *, heads: bool = True) -> SSM:
        """Return the sizes of a file. With `heads`, they must divide the channels."""
        found = cls(
            keys.count("ssm.conv_kernel", low=2),
            keys.count("ssm.inner_size"),
            keys.count("ssm.state_size"),
            keys.count("ssm.time_step_rank"),
            keys.count("ssm.group_count", 1, low=0) or 1,  # PLaMo 2 has 0
        )
        if heads and found.d_inner % found.n_rank:
            n = found.d_inner
            keys.fail("ssm.time_step_rank", found.n_rank, f"must divide the inner size {n}")
        if heads and found.n_rank % found.n_group:
            n = found.n_rank
            keys.fail("ssm.group_count", found.n_group, f"must divide the {n} heads")
        return found


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Mamba (arXiv 2312.00752).

    Attributes:
        ssm: its sizes.
        norm: the norm of steps, B and C, by its tensor's name; None: there is none.
    """

    ssm: SSM
    norm: Callable[[LayerBuild, Tensor, str], Tensor] | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The elements of a layer's states."""
        s = self.ssm
        return ((s.n_conv - 1) * s.d_inner, s.d_state * s.d_inner)

    def build(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the mixed tokens of x [n_embd, n_tokens]."""
        s = self.ssm
        xz = b.named(b.linear(x, "ssm_in", 2 * s.d_inner), "ssm_in")
        x, z = part(xz, 0, s.d_inner), part(xz, s.d_inner, s.d_inner)
        x = ops.silu(convolved(b, x, "ssm_conv1d", s.n_conv, Bias.REQUIRED))
        rows = b.named(b.linear(x, "ssm_x", s.n_rank + 2 * s.d_state), "ssm_x")
        dt, bs, cs = (
            self._normed(b, part(rows, begin, n), name)
            for begin, n, name in (
                (0, s.n_rank, "ssm_dt_norm"),
                (s.n_rank, s.d_state, "ssm_b_norm"),
                (s.n_rank + s.d_state, s.d_state, "ssm_c_norm"),
            )
        )
        dt = b.named(b.linear(dt, "ssm_dt", s.d_inner, Bias.REQUIRED), "ssm_dt")
        y = ops.ssm_scan(
            ops.reshape(x, (1, *x.ne[:2])),
            dt,
            b.required("ssm_a", (s.d_state, s.d_inner), Op.SSM_SCAN),
            part(bs, 0, s.d_state, 1),
            part(cs, 0, s.d_state, 1),
            b.states[1],
            b.slots,
            b.required("ssm_d", (s.d_inner,), Op.MUL),
        )
        y = ops.swiglu(z, ops.reshape(b.named(y, "ssm_scan"), x.ne[:2]))
        return b.named(b.linear(y, "ssm_out", b.hp.n_embd), "ssm_out")

    def _normed(self, b: LayerBuild, x: Tensor, name: str) -> Tensor:
        return x if self.norm is None else self.norm(b, x, name)


@dataclass(frozen=True, slots=True)
class GroupedMixer:
    """What Mamba 2 and the delta net share: one convolution of all inputs, then a scan of heads."""

    ssm: SSM

    @property
    def n_conv_channels(self) -> int:
        return self.ssm.d_inner + 2 * self.ssm.n_group * self.ssm.d_state

    @property
    def sizes(self) -> tuple[int, ...]:
        """The elements of a layer's states."""
        s = self.ssm
        return ((s.n_conv - 1) * self.n_conv_channels, s.d_state * s.d_inner)


class Mamba2(GroupedMixer):
    """Mamba 2 (arXiv 2405.21060). A file may lack the norm of its result."""

    __slots__ = ()

    def build(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the mixed tokens of x [n_embd, n_tokens]."""
        s, n_conv, n_head = self.ssm, self.n_conv_channels, self.ssm.n_rank
        rows = b.named(b.linear(x, "ssm_in", s.d_inner + n_conv + n_head), "ssm_in")
        z, dt = part(rows, 0, s.d_inner), part(rows, s.d_inner + n_conv, n_head)
        dt = ops.add(dt, b.required("ssm_dt.bias", (n_head,), Op.ADD))
        x = convolved(b, part(rows, s.d_inner, n_conv), "ssm_conv1d", s.n_conv, Bias.REQUIRED)
        x = ops.silu(x)
        y = ops.ssm_scan(
            part(x, 0, s.d_inner // n_head, n_head),
            dt,
            b.required("ssm_a", (1, n_head), Op.SSM_SCAN),
            part(x, s.d_inner, s.d_state, s.n_group),
            part(x, s.d_inner + s.n_group * s.d_state, s.d_state, s.n_group),
            b.states[1],
            b.slots,
            ops.reshape(b.required("ssm_d", (1, n_head), Op.MUL), (n_head,)),
        )
        y = ops.swiglu(z, ops.reshape(b.named(y, "ssm_scan"), (s.d_inner, x.ne[1])))
        groups = b.heads(y, s.d_inner // s.n_group)
        y = ops.reshape(b.norm(groups, "ssm_norm", ne=groups.ne[:2], optional=True), y.ne)
        return b.named(b.linear(y, "ssm_out", b.hp.n_embd), "ssm_out")


@dataclass(frozen=True, slots=True)
class DeltaNet(GroupedMixer):
    """A gated delta net (arXiv 2412.06464).

    Attributes:
        ssm: its sizes: heads of values, groups (heads of keys), elements of a head (`d_state`).
        interleaved: value head h has key head h % n_group, else h // (n_head / n_group).
        joint: the matrices of decays and of betas are one, `ssm_ba`, group by group.
    """

    interleaved: bool
    joint: bool

    def build(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the mixed tokens of x [n_embd, n_tokens]."""
        s, n_head, n_keys = self.ssm, self.ssm.n_rank, self.ssm.n_group * self.ssm.d_state
        z = b.named(b.linear(x, "attn_gate", s.d_inner), "z")
        decay, beta = self._gates(b, x)
        x = b.named(b.linear(x, "attn_qkv", self.n_conv_channels), "qkv_mixed")
        x = ops.silu(convolved(b, x, "ssm_conv1d", s.n_conv))
        q, k = over_l2_norm(*(part(x, i * n_keys, s.d_state, s.n_group) for i in range(2)))
        y = ops.gated_delta_net(
            q,
            k,
            part(x, 2 * n_keys, s.d_state, n_head),
            decay,
            beta,
            b.states[1],
            b.slots,
            interleaved=self.interleaved,
        )
        y = b.norm(b.named(y, "delta_net"), "ssm_norm")
        y = ops.swiglu(b.heads(z, s.d_state), y)
        return b.named(b.linear(ops.reshape(y, z.ne), "ssm_out", b.hp.n_embd), "ssm_out")

    def _gates(self, b: LayerBuild, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithms of decays and the betas of x, [n_head, n_tokens]."""
        s, n_head = self.ssm, self.ssm.n_rank
        if self.joint:
            n_each = n_head // s.n_group
            rows = b.heads(b.linear(x, "ssm_ba", 2 * n_head), 2 * n_each)
            beta, alpha = (
                ops.cont(ops.view(rows, (n_each, *rows.ne[1:3]), rows.nb, i * n_each * rows.nb[0]))
                for i in range(2)
            )
            beta, alpha = (ops.reshape(y, (n_head, x.ne[1])) for y in (beta, alpha))
        else:
            beta, alpha = b.linear(x, "ssm_beta", n_head), b.linear(x, "ssm_alpha", n_head)
        alpha = ops.add(alpha, b.required("ssm_dt.bias", (n_head,), Op.ADD))
        decay = ops.mul(ops.unary(alpha, UnaryOp.SOFTPLUS), b.required("ssm_a", (n_head,), Op.MUL))
        return decay, ops.unary(beta, UnaryOp.SIGMOID)
