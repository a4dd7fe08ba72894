"""States in slots: their places before and after a token (graph/ops/recurrent.py).

`i` is the number of the states among a kernel's tensors; the slots follow.
Tested by tests/kernels/test_recurrent.py.
"""

from __future__ import annotations

from ..params import data, fail, nb, ne
from ..simd.calls import inlined
from ..simd.memory import load_i32, store_f32_part
from ..simd.vectors import LANES, zero


@inlined
def are_slots(p, i):
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
def slot_before(p, i, t):
    """The slot of the state before token t; below 0 if that is all zeros."""
    return load_i32(data(p, i + 1) + 8 * t)


@inlined
def slot_after(p, i, t):
    return load_i32(data(p, i + 1) + 8 * t + 4)


@inlined
def state(p, i, slot, offset):
    return data(p, i) + slot * nb(p, i, 1) + offset


@inlined
def state_before(p, i, t, offset, size):
    """The address of a part of the state before token t. If that is zeros, the token's own slot is
    filled with zeros."""
    slot = slot_before(p, i, t)
    if slot >= 0:
        return state(p, i, slot, offset)
    begin = state(p, i, slot_after(p, i, t), offset)
    for j in range(0, size, 4 * LANES):
        store_f32_part(begin + j, zero(), (size - j) // 4)
    return begin
