"""Recurrences over states in slots (graph/ops/recurrent.py).

Threads divide channels or heads, in blocks; a thread computes all tokens of a block in their order.
Each token reads its block of the state from one slot and writes it to another, mostly the same one.
A block stays in the first cache for all tokens of a sequence, and vectors are across channels, so a
load of the state costs less than the arithmetic on it. Tested by tests/kernels/test_recurrent.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import DeltaParams, Op, UnaryOp, UnaryParams
from ....graph.tensor import Tensor, params_of
from ...plan.chains import ConvUnary, conv_sources
from ...plan.node_params import STATE_COLUMNS, has_head_decay
from ..compiler.jit import kernel
from ..params import data, fail, first_of, int_param, nb, ne, row_at, work
from ..simd.calls import inlined
from ..simd.functions import vexp
from ..simd.memory import (
    load_f32,
    load_f32_column,
    load_f32_part,
    load_f32x16,
    load_i32,
    store_f32,
    store_f32_part,
    store_f32x16,
    transpose_f32x4,
)
from ..simd.vectors import LANES, fma, splat, zero
from ..table import SMALL, CpuCall, fuses, implements
from .activations import silu, softplus
from .matrix import SMALL_WORK

CHANNELS: Final = 512  # channels that a thread convolves at a time


# --- slots ---


@inlined
def _are_slots(p, i):
    """True if the slots of all tokens are valid; else report one. Tensor i has the states."""
    slots, n_slots = data(p, i + 1), ne(p, i, 1)
    for t in range(ne(p, i + 1, 1)):
        src, dst = load_i32(slots + 8 * t), load_i32(slots + 8 * t + 4)
        if src >= n_slots:
            fail(p, src, n_slots)
            return False
        if dst < 0 or dst >= n_slots:
            fail(p, dst, n_slots)
            return False
    return True


@inlined
def _slot_before(p, i, t):
    """The slot of the state before token t; below 0 if that is all zeros."""
    return load_i32(data(p, i + 1) + 8 * t)


@inlined
def _slot_after(p, i, t):
    return load_i32(data(p, i + 1) + 8 * t + 4)


@inlined
def _state(p, i, slot, offset):
    return data(p, i) + slot * nb(p, i, 1) + offset


@inlined
def _state_before(p, i, t, offset, size):
    """The address of a part of the state before token t. If that is zeros, the token's own slot is
    filled with zeros."""
    slot = _slot_before(p, i, t)
    if slot >= 0:
        return _state(p, i, slot, offset)
    begin = _state(p, i, _slot_after(p, i, t), offset)
    for j in range(0, size, 4 * LANES):
        store_f32_part(begin + j, zero(), (size - j) // 4)
    return begin


# --- weights ---


@inlined
def _transpose(x, stride, n, m, to, to_stride):
    """Copy `n` rows of `m` floats, `stride` bytes apart, as `m` rows of `n`."""
    for i in range(0, n, LANES):
        for j in range(0, m, 4):
            at, out = x + stride * i + 4 * j, to + to_stride * j + 4 * i
            if n - i < LANES:
                for k in range(min(4, m - j)):
                    for r in range(n - i):
                        store_f32(out + to_stride * k + 4 * r, load_f32(at + stride * r + 4 * k))
            elif m - j >= 4:
                transpose_f32x4(at, stride, out, to_stride)
            else:
                for k in range(m - j):
                    store_f32x16(out + to_stride * k, load_f32_column(at + 4 * k, stride))


# --- convolution ---

CONV_STATES: Final = 1  # the number of the states among a kernel's tensors


@kernel
def ssm_conv_f32(p, ith, nth):
    """Tensors: the result, the states, their slots, x, the weights, the bias if parameter 0 is 1.

    Parameter 1 is 1 if SiLU follows. Scratch memory has the taps of a block's channels.
    """
    n_channels, n_taps, taps = ne(p, 0, 0), ne(p, 4, 0), work(p, ith)
    lines = (n_channels + LANES - 1) // LANES
    if _are_slots(p, CONV_STATES):
        end = min(n_channels, LANES * first_of(lines, ith + 1, nth))
        for first in range(LANES * first_of(lines, ith, nth), end, CHANNELS):
            n = min(CHANNELS, end - first)
            _transpose(row_at(p, 4, first, 0, 0), nb(p, 4, 1), n, n_taps, taps, 4 * CHANNELS)
            for t in range(ne(p, 0, 1)):
                _convolve(p, t, first, n, taps)


@inlined
def _convolve(p, t, first, n, taps):
    """The results of token t for the n channels from `first` on, and their new state."""
    n_taps, row, offset = ne(p, 4, 0), 4 * ne(p, 0, 0), 4 * first
    slot = _slot_before(p, CONV_STATES, t)
    before = _state(p, CONV_STATES, slot, offset)
    after = _state(p, CONV_STATES, _slot_after(p, CONV_STATES, t), offset)
    x, out = row_at(p, 3, t, 0, 0) + offset, row_at(p, 0, t, 0, 0) + offset
    bias = data(p, 5) + offset if int_param(p, 0) else 0
    if n_taps == 4 and slot >= 0 and n % LANES == 0:
        _convolve_4(p, before, after, row, x, n, taps, bias, out)
        return
    for c in range(0, 4 * n, 4 * LANES):
        left, y = n - c // 4, zero()
        for k in range(n_taps - 1):
            # in place, a column is read before its memory gets the next one
            column = load_f32_part(before + row * k + c, left) if slot >= 0 else zero()
            y = fma(load_f32x16(taps + 4 * CHANNELS * k + c), column, y)
            if k > 0:
                store_f32_part(after + row * (k - 1) + c, column, left)
        column = load_f32_part(x + c, left)
        store_f32_part(after + row * (n_taps - 2) + c, column, left)
        y = fma(load_f32x16(taps + 4 * CHANNELS * (n_taps - 1) + c), column, y)
        if bias != 0:
            y = y + load_f32_part(bias + c, left)
        store_f32_part(out + c, silu(y) if int_param(p, 1) else y, left)


@inlined
def _convolve_4(p, before, after, row, x, n, taps, bias, out):
    """The usual number of taps, for whole vectors and a state that is not zeros."""
    for c in range(0, 4 * n, 4 * LANES):
        # loads first: a load waits for a store whose address has the same low bits
        x0, x1 = load_f32x16(before + c), load_f32x16(before + row + c)
        x2, x3 = load_f32x16(before + 2 * row + c), load_f32x16(x + c)
        store_f32x16(after + c, x1)
        store_f32x16(after + row + c, x2)
        store_f32x16(after + 2 * row + c, x3)
        y = fma(load_f32x16(taps + c), x0, zero())
        y = fma(load_f32x16(taps + 4 * CHANNELS + c), x1, y)
        y = fma(load_f32x16(taps + 8 * CHANNELS + c), x2, y)
        y = fma(load_f32x16(taps + 12 * CHANNELS + c), x3, y)
        if bias != 0:
            y = y + load_f32x16(bias + c)
        store_f32x16(out + c, silu(y) if int_param(p, 1) else y)


@implements(Op.SSM_CONV)
def _ssm_conv(node: Tensor) -> Sequence[CpuCall]:
    return [_conv_call(node, (node, *conv_sources(node)), False)]


@fuses(ConvUnary)
def _conv_silu(chain: ConvUnary) -> Sequence[CpuCall] | None:
    if params_of(chain.unary, UnaryParams).op is not UnaryOp.SILU:
        return None
    return [_conv_call(chain.conv, chain.tensors, True)]


def _conv_call(conv: Tensor, tensors: Sequence[Tensor], is_silu: bool) -> CpuCall:
    n_taps, is_biased = conv.src[1].ne[0], len(conv.src) > 4
    return CpuCall(
        ssm_conv_f32,
        (is_biased, is_silu),
        one_thread=conv.n_elements * n_taps < SMALL,
        work=4 * CHANNELS * n_taps,
        tensors=tensors,
        n_written=2,
    )


# --- selective scan ---

SCAN_STATES: Final = 6


@kernel
def ssm_scan_heads_f32(p, ith, nth):
    """One decay for each head (Mamba 2). Parameter 0 is 1 if there is d."""
    head_dim, n_head = ne(p, 0, 0), ne(p, 0, 1)
    blocks = (head_dim + STATE_COLUMNS - 1) // STATE_COLUMNS
    items = n_head * blocks
    if _are_slots(p, SCAN_STATES):
        for i in range(first_of(items, ith, nth), first_of(items, ith + 1, nth)):
            h, first = i // blocks, i % blocks * STATE_COLUMNS
            n = min(STATE_COLUMNS, head_dim - first)
            offset = 4 * ne(p, 4, 0) * (head_dim * h + first)
            for t in range(ne(p, 0, 2)):
                _scan_heads(p, t, h, first, n, offset)


@inlined
def _scan_heads(p, t, h, first, n, offset):
    """Token t for the n columns from `first` on of head h, whose states are at `offset`."""
    d_state, row = ne(p, 4, 0), 4 * n
    before = _state_before(p, SCAN_STATES, t, offset, row * d_state)
    after = _state(p, SCAN_STATES, _slot_after(p, SCAN_STATES, t), offset)
    group = h * ne(p, 4, 1) // ne(p, 0, 1)
    b, c = row_at(p, 4, group, t, 0), row_at(p, 5, group, t, 0)
    step = softplus(splat(load_f32(row_at(p, 2, t, 0, 0) + 4 * h)))
    decay = vexp(step * splat(load_f32(row_at(p, 3, h, 0, 0))))
    skip = splat(load_f32(data(p, 8) + 4 * h)) if int_param(p, 0) else zero()
    x, out = row_at(p, 1, h, t, 0) + 4 * first, row_at(p, 0, h, t, 0) + 4 * first
    if n == STATE_COLUMNS:
        x0, x1 = load_f32x16(x), load_f32x16(x + 64)
        added0, added1, y0, y1 = step * x0, step * x1, zero(), zero()
        for j in range(d_state):
            b_j, c_j = splat(load_f32(b + 4 * j)), splat(load_f32(c + 4 * j))
            s0 = fma(added0, b_j, load_f32x16(before + row * j) * decay)
            s1 = fma(added1, b_j, load_f32x16(before + row * j + 64) * decay)
            store_f32x16(after + row * j, s0)
            store_f32x16(after + row * j + 64, s1)
            y0, y1 = fma(s0, c_j, y0), fma(s1, c_j, y1)
        store_f32x16(out, fma(skip, x0, y0))
        store_f32x16(out + 64, fma(skip, x1, y1))
    else:
        for i in range(0, n, LANES):
            x0, y0 = load_f32_part(x + 4 * i, n - i), zero()
            for j in range(d_state):
                at = row * j + 4 * i
                s0 = load_f32_part(before + at, n - i) * decay
                s0 = fma(step * x0, splat(load_f32(b + 4 * j)), s0)
                store_f32_part(after + at, s0, n - i)
                y0 = fma(s0, splat(load_f32(c + 4 * j)), y0)
            store_f32_part(out + 4 * i, fma(skip, x0, y0), n - i)


@kernel
def ssm_scan_channels_f32(p, ith, nth):
    """A decay for each number of a state, heads of one element (Mamba 1).

    Parameter 0 is 1 if there is d. Scratch memory has the block's part of a, transposed.
    """
    d_state, n_head, a = ne(p, 4, 0), ne(p, 0, 1), work(p, ith)
    blocks = (n_head + STATE_COLUMNS - 1) // STATE_COLUMNS
    if _are_slots(p, SCAN_STATES):
        for i in range(first_of(blocks, ith, nth), first_of(blocks, ith + 1, nth)):
            first = STATE_COLUMNS * i
            n = min(STATE_COLUMNS, n_head - first)
            _transpose(row_at(p, 3, first, 0, 0), nb(p, 3, 1), n, d_state, a, 4 * STATE_COLUMNS)
            for t in range(ne(p, 0, 2)):
                for h in range(0, n, LANES):
                    offset = 4 * (d_state * first + h)
                    _scan_channels(p, t, first + h, a + 4 * h, offset, 4 * n, n - h)


@inlined
def _scan_channels(p, t, h, a, offset, row, n):
    """Token t for up to 16 heads from h on, whose states are at `offset`, `row` bytes apart."""
    d_state = ne(p, 4, 0)
    slot = _slot_before(p, SCAN_STATES, t)
    before = _state(p, SCAN_STATES, slot, offset)
    after = _state(p, SCAN_STATES, _slot_after(p, SCAN_STATES, t), offset)
    b, c = row_at(p, 4, 0, t, 0), row_at(p, 5, 0, t, 0)
    step = softplus(load_f32_part(row_at(p, 2, t, 0, 0) + 4 * h, n))
    x = load_f32_part(row_at(p, 1, h, t, 0), n)
    added, y = step * x, zero()
    for j in range(d_state):
        decay = vexp(step * load_f32x16(a + 4 * STATE_COLUMNS * j))
        s = load_f32_part(before + row * j, n) if slot >= 0 else zero()
        s = fma(added, splat(load_f32(b + 4 * j)), s * decay)
        store_f32_part(after + row * j, s, n)
        y = fma(s, splat(load_f32(c + 4 * j)), y)
    if int_param(p, 0):
        y = fma(load_f32_part(data(p, 8) + 4 * h, n), x, y)
    store_f32_part(row_at(p, 0, h, t, 0), y, n)


@implements(Op.SSM_SCAN)
def _ssm_scan(node: Tensor) -> Sequence[CpuCall]:
    d_state, params = node.src[3].ne[0], (len(node.src) > 7,)
    small = node.n_elements * d_state < SMALL_WORK
    if has_head_decay(node):
        return [CpuCall(ssm_scan_heads_f32, params, small)]
    return [CpuCall(ssm_scan_channels_f32, params, small, work=4 * STATE_COLUMNS * d_state)]


# --- gated delta net ---

DELTA_STATES: Final = 6


@kernel
def gated_delta_net_f32(p, ith, nth):
    """Parameter 0 is 1 if value heads use key heads in turn."""
    d, n_v = ne(p, 0, 0), ne(p, 0, 1)
    blocks = (d + STATE_COLUMNS - 1) // STATE_COLUMNS
    items = n_v * blocks
    if _are_slots(p, DELTA_STATES):
        for i in range(first_of(items, ith, nth), first_of(items, ith + 1, nth)):
            h, first = i // blocks, i % blocks * STATE_COLUMNS
            n_k = ne(p, 1, 1)
            key_head = h % n_k if int_param(p, 0) else h * n_k // n_v
            n = min(STATE_COLUMNS, d - first)
            offset = 4 * d * (d * h + first)
            if n == STATE_COLUMNS:
                _delta_block(p, h, key_head, first, offset)
            else:
                for j in range(0, n, LANES):
                    _delta_part(p, h, key_head, first + j, offset, 4 * j, n)


@inlined
def _delta_block(p, h, key_head, first, offset):
    """All tokens for a whole block of columns from `first` on of head h, states at `offset`.

    A pass over the state of a token also multiplies it with the key of the next token.
    """
    d, n_tokens = ne(p, 0, 0), ne(p, 0, 2)
    row = 4 * STATE_COLUMNS
    known0, known1 = zero(), zero()
    for t in range(n_tokens):
        before = _state_before(p, DELTA_STATES, t, offset, row * d)
        slot = _slot_after(p, DELTA_STATES, t)
        after = _state(p, DELTA_STATES, slot, offset)
        q, k = row_at(p, 1, key_head, t, 0), row_at(p, 2, key_head, t, 0)
        v, out = row_at(p, 3, h, t, 0) + 4 * first, row_at(p, 0, h, t, 0) + 4 * first
        if t == 0 or _slot_before(p, DELTA_STATES, t) != _slot_after(p, DELTA_STATES, t - 1):
            known0, known1 = zero(), zero()
            for i in range(d):
                k_i = splat(load_f32(k + 4 * i))
                known0 = fma(k_i, load_f32x16(before + row * i), known0)
                known1 = fma(k_i, load_f32x16(before + row * i + 64), known1)
        decay = vexp(splat(load_f32(row_at(p, 4, t, 0, 0) + 4 * h)))
        beta = splat(load_f32(row_at(p, 5, t, 0, 0) + 4 * h))
        change0 = (load_f32x16(v) - known0 * decay) * beta
        change1 = (load_f32x16(v + 64) - known1 * decay) * beta
        following = row_at(p, 2, key_head, min(t + 1, n_tokens - 1), 0)
        y0, y1, known0, known1 = zero(), zero(), zero(), zero()
        for i in range(d):
            k_i, q_i = splat(load_f32(k + 4 * i)), splat(load_f32(q + 4 * i))
            next_i = splat(load_f32(following + 4 * i))
            s0 = fma(k_i, change0, load_f32x16(before + row * i) * decay)
            s1 = fma(k_i, change1, load_f32x16(before + row * i + 64) * decay)
            store_f32x16(after + row * i, s0)
            store_f32x16(after + row * i + 64, s1)
            y0, y1 = fma(q_i, s0, y0), fma(q_i, s1, y1)
            known0, known1 = fma(next_i, s0, known0), fma(next_i, s1, known1)
        store_f32x16(out, y0)
        store_f32x16(out + 64, y1)


@inlined
def _delta_part(p, h, key_head, first, offset, at, n_block):
    """All tokens for up to 16 columns from `first` on, in a block of `n_block` columns."""
    d, row = ne(p, 0, 0), 4 * n_block
    n = n_block - at // 4
    for t in range(ne(p, 0, 2)):
        slot = _slot_before(p, DELTA_STATES, t)
        before = _state(p, DELTA_STATES, slot, offset + at)
        after = _state(p, DELTA_STATES, _slot_after(p, DELTA_STATES, t), offset + at)
        q, k = row_at(p, 1, key_head, t, 0), row_at(p, 2, key_head, t, 0)
        known, y = zero(), zero()
        for i in range(d):
            s = load_f32_part(before + row * i, n) if slot >= 0 else zero()
            known = fma(splat(load_f32(k + 4 * i)), s, known)
        decay = vexp(splat(load_f32(row_at(p, 4, t, 0, 0) + 4 * h)))
        beta = splat(load_f32(row_at(p, 5, t, 0, 0) + 4 * h))
        v = load_f32_part(row_at(p, 3, h, t, 0) + 4 * first, n)
        change = (v - known * decay) * beta
        for i in range(d):
            s = load_f32_part(before + row * i, n) if slot >= 0 else zero()
            s = fma(splat(load_f32(k + 4 * i)), change, s * decay)
            store_f32_part(after + row * i, s, n)
            y = fma(splat(load_f32(q + 4 * i)), s, y)
        store_f32_part(row_at(p, 0, h, t, 0) + 4 * first, y, n)


@implements(Op.GATED_DELTA_NET)
def _gated_delta_net(node: Tensor) -> Sequence[CpuCall]:
    params = (params_of(node, DeltaParams).interleaved,)
    return [CpuCall(gated_delta_net_f32, params, node.n_elements * node.ne[0] < SMALL_WORK)]
