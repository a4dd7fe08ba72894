"""Gated delta nets: recurrences over matrices of states (graph/ops/recurrent.py).

Threads divide blocks of columns; a thread computes all tokens of a block in their order, so that it
stays in the first cache. Each block reads the state once per token: the same pass makes the new
state, the result, and what the next token's key finds in it.
Tested by tests/kernels/test_recurrent.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import DeltaParams, Op
from ....graph.tensor import Tensor, params_of
from ...plan.node_params import STATE_COLUMNS, has_channel_decay
from ..compiler.jit import kernel
from ..params import first_of, int_param, ne, row_at, work
from ..simd.calls import inlined
from ..simd.functions import vexp
from ..simd.memory import load_f32, load_f32_part, load_f32x16, store_f32_part, store_f32x16
from ..simd.vectors import LANES, fma, splat, zero
from ..table import CpuCall, implements
from .matrix import SMALL_WORK
from .state_slots import are_slots, slot_after, slot_before, state, state_before

DELTA_STATES: Final = 6


@kernel
def gated_delta_net_f32(p, ith, nth):
    """Parameter 0 is 1 if value heads use key heads in turn; 1 is 1 if each element of a key has
    its own decay. Scratch memory is that of `_faded`, for two tokens."""
    d, n_v = ne(p, 0, 0), ne(p, 0, 1)
    blocks = (d + STATE_COLUMNS - 1) // STATE_COLUMNS
    items = n_v * blocks
    if are_slots(p, DELTA_STATES):
        for i in range(first_of(items, ith, nth), first_of(items, ith + 1, nth)):
            h, first = i // blocks, i % blocks * STATE_COLUMNS
            n_k = ne(p, 1, 1)
            key_head = h % n_k if int_param(p, 0) else h * n_k // n_v
            n = min(STATE_COLUMNS, d - first)
            offset = 4 * d * (d * h + first)
            if n == STATE_COLUMNS:
                if int_param(p, 1):
                    _faded_block(p, h, key_head, first, offset, work(p, ith))
                else:
                    _delta_block(p, h, key_head, first, offset)
            else:
                for j in range(0, n, LANES):
                    if int_param(p, 1):
                        _faded_part(p, h, key_head, first + j, offset, 4 * j, n, work(p, ith))
                    else:
                        _delta_part(p, h, key_head, first + j, offset, 4 * j, n)


@inlined
def _delta_block(p, h, key_head, first, offset):
    """All tokens for a whole block of columns from `first` on of head h, states at `offset`."""
    d, n_tokens = ne(p, 0, 0), ne(p, 0, 2)
    row = 4 * STATE_COLUMNS
    known0, known1 = zero(), zero()
    for t in range(n_tokens):
        before = state_before(p, DELTA_STATES, t, offset, row * d)
        slot = slot_after(p, DELTA_STATES, t)
        after = state(p, DELTA_STATES, slot, offset)
        q, k = row_at(p, 1, key_head, t, 0), row_at(p, 2, key_head, t, 0)
        v, out = row_at(p, 3, h, t, 0) + 4 * first, row_at(p, 0, h, t, 0) + 4 * first
        if t == 0 or slot_before(p, DELTA_STATES, t) != slot_after(p, DELTA_STATES, t - 1):
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
        slot = slot_before(p, DELTA_STATES, t)
        before = state(p, DELTA_STATES, slot, offset + at)
        after = state(p, DELTA_STATES, slot_after(p, DELTA_STATES, t), offset + at)
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


# --- a decay for each element of a key ---


@inlined
def _faded(p, h, key_head, t, to):
    """Write the decays of token t to `to`, and after them its key times these decays."""
    d = ne(p, 0, 0)
    g, k, key = row_at(p, 4, h, t, 0), row_at(p, 2, key_head, t, 0), to + 4 * d
    for i in range(0, 4 * d, 4 * LANES):
        n = d - i // 4
        decay = vexp(load_f32_part(g + i, n))
        store_f32_part(to + i, decay, n)
        store_f32_part(key + i, decay * load_f32_part(k + i, n), n)


@inlined
def _faded_block(p, h, key_head, first, offset, memory):
    """As `_delta_block`. `memory` has room for the decays of this token and of the next one."""
    d, n_tokens = ne(p, 0, 0), ne(p, 0, 2)
    row = 4 * STATE_COLUMNS
    known0, known1 = zero(), zero()
    _faded(p, h, key_head, 0, memory)
    for t in range(n_tokens):
        decays, following = memory + 8 * d * (t % 2), memory + 8 * d * ((t + 1) % 2)
        key = decays + 4 * d
        before = state_before(p, DELTA_STATES, t, offset, row * d)
        after = state(p, DELTA_STATES, slot_after(p, DELTA_STATES, t), offset)
        q, k = row_at(p, 1, key_head, t, 0), row_at(p, 2, key_head, t, 0)
        v, out = row_at(p, 3, h, t, 0) + 4 * first, row_at(p, 0, h, t, 0) + 4 * first
        if t == 0 or slot_before(p, DELTA_STATES, t) != slot_after(p, DELTA_STATES, t - 1):
            known0, known1 = zero(), zero()
            for i in range(d):
                key_i = splat(load_f32(key + 4 * i))
                known0 = fma(key_i, load_f32x16(before + row * i), known0)
                known1 = fma(key_i, load_f32x16(before + row * i + 64), known1)
        beta = splat(load_f32(row_at(p, 5, t, 0, 0) + 4 * h))
        change0 = (load_f32x16(v) - known0) * beta
        change1 = (load_f32x16(v + 64) - known1) * beta
        _faded(p, h, key_head, min(t + 1, n_tokens - 1), following)
        y0, y1, known0, known1 = zero(), zero(), zero(), zero()
        for i in range(d):
            k_i, q_i = splat(load_f32(k + 4 * i)), splat(load_f32(q + 4 * i))
            decay = splat(load_f32(decays + 4 * i))
            next_i = splat(load_f32(following + 4 * (d + i)))
            s0 = fma(k_i, change0, load_f32x16(before + row * i) * decay)
            s1 = fma(k_i, change1, load_f32x16(before + row * i + 64) * decay)
            store_f32x16(after + row * i, s0)
            store_f32x16(after + row * i + 64, s1)
            y0, y1 = fma(q_i, s0, y0), fma(q_i, s1, y1)
            known0, known1 = fma(next_i, s0, known0), fma(next_i, s1, known1)
        store_f32x16(out, y0)
        store_f32x16(out + 64, y1)


@inlined
def _faded_part(p, h, key_head, first, offset, at, n_block, memory):
    """As `_delta_part`, with `memory` for the decays of a token."""
    d, row = ne(p, 0, 0), 4 * n_block
    n, key = n_block - at // 4, memory + 4 * d
    for t in range(ne(p, 0, 2)):
        slot = slot_before(p, DELTA_STATES, t)
        before = state(p, DELTA_STATES, slot, offset + at)
        after = state(p, DELTA_STATES, slot_after(p, DELTA_STATES, t), offset + at)
        q, k = row_at(p, 1, key_head, t, 0), row_at(p, 2, key_head, t, 0)
        _faded(p, h, key_head, t, memory)
        known, y = zero(), zero()
        for i in range(d):
            s = load_f32_part(before + row * i, n) if slot >= 0 else zero()
            known = fma(splat(load_f32(key + 4 * i)), s, known)
        beta = splat(load_f32(row_at(p, 5, t, 0, 0) + 4 * h))
        v = load_f32_part(row_at(p, 3, h, t, 0) + 4 * first, n)
        change = (v - known) * beta
        for i in range(d):
            s = load_f32_part(before + row * i, n) if slot >= 0 else zero()
            s = fma(splat(load_f32(k + 4 * i)), change, s * splat(load_f32(memory + 4 * i)))
            store_f32_part(after + row * i, s, n)
            y = fma(splat(load_f32(q + 4 * i)), s, y)
        store_f32_part(row_at(p, 0, h, t, 0) + 4 * first, y, n)


@implements(Op.GATED_DELTA_NET)
def _gated_delta_net(node: Tensor) -> Sequence[CpuCall]:
    params = (params_of(node, DeltaParams).interleaved, has_channel_decay(node))
    small = node.n_elements * node.ne[0] < SMALL_WORK
    return [CpuCall(gated_delta_net_f32, params, small, work=16 * node.ne[0])]
