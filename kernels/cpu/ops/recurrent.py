"""Recurrences over states in slots (graph/ops/recurrent.py): convolution and selective scan.

Threads divide channels or heads, in blocks; a thread computes all tokens of a block in their order.
Each token reads its block of the state from one slot and writes it to another, mostly the same one.
A block stays in the first cache for all tokens of a sequence, and vectors are across channels, so a
load of the state costs less than the arithmetic on it. Tested by tests/kernels/test_recurrent.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import Op, UnaryOp, UnaryParams
from ....graph.tensor import Tensor, params_of
from ...plan.chains import ConvUnary, conv_sources
from ...plan.node_params import STATE_COLUMNS, has_head_decay
from ..compiler.jit import kernel
from ..params import data, first_of, int_param, nb, ne, row_at, work
from ..simd.calls import inlined
from ..simd.functions import vexp
from ..simd.memory import (
    load_f32,
    load_f32_column,
    load_f32_part,
    load_f32x16,
    store_f32,
    store_f32_part,
    store_f32x16,
    transpose_f32x4,
)
from ..simd.vectors import LANES, fma, splat, zero
from ..table import SMALL, CpuCall, fuses, implements
from .activations import silu, softplus
from .matrix import SMALL_WORK
from .state_slots import are_slots, slot_after, slot_before, state, state_before

CHANNELS: Final = 512  # channels that a thread convolves at a time

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
    if are_slots(p, CONV_STATES):
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
    slot = slot_before(p, CONV_STATES, t)
    before = state(p, CONV_STATES, slot, offset)
    after = state(p, CONV_STATES, slot_after(p, CONV_STATES, t), offset)
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
    if are_slots(p, SCAN_STATES):
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
    before = state_before(p, SCAN_STATES, t, offset, row * d_state)
    after = state(p, SCAN_STATES, slot_after(p, SCAN_STATES, t), offset)
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
    if are_slots(p, SCAN_STATES):
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
    slot = slot_before(p, SCAN_STATES, t)
    before = state(p, SCAN_STATES, slot, offset)
    after = state(p, SCAN_STATES, slot_after(p, SCAN_STATES, t), offset)
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
