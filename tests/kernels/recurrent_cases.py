"""Nodes of recurrences, for their tests and for the table of op cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from reference_run import Array, ids, leaf, normal

from lamella.graph import Tensor, ops

Tokens = Sequence[int]
Make = Callable[[Tokens, Tensor, Array], Tensor]  # of tokens, with these states and slots

N_TOKENS: Final = 12
N_SLOTS: Final = 6


def conv(n_channels: int, n_taps: int, *, bias: bool, n: int = N_TOKENS) -> Make:
    x, w = normal(n, n_channels), normal(n_channels, n_taps, seed=1)
    extra = normal(n_channels, seed=2)

    def make(t: Tokens, states: Tensor, slots: Array) -> Tensor:
        more = (leaf(extra),) if bias else ()
        return ops.ssm_conv(leaf(x[t]), leaf(w), states, ids(slots), *more)

    return make


def scan(
    head_dim: int, n_head: int, d_state: int, n_group: int, *, d: bool = False, n: int = N_TOKENS
) -> Make:
    """Mamba 2's scan; with heads of one element that of Mamba 1."""
    x, dt = normal(n, n_head, head_dim), normal(n, n_head, seed=1) - 2
    a = -np.exp(normal(n_head, d_state if head_dim == 1 else 1, seed=2))
    b, c = normal(n, n_group, d_state, seed=3), normal(n, n_group, d_state, seed=4)
    skip = normal(n_head, seed=5)

    def make(t: Tokens, states: Tensor, slots: Array) -> Tensor:
        more = (leaf(skip),) if d else ()
        return ops.ssm_scan(
            *(leaf(x[t]), leaf(dt[t]), leaf(a), leaf(b[t]), leaf(c[t])), states, ids(slots), *more
        )

    return make


def delta(
    d: int,
    n_k: int,
    n_v: int,
    *,
    interleaved: bool = False,
    by_channel: bool = False,
    n: int = N_TOKENS,
) -> Make:
    """A gated delta net, with a decay for each head, or each element of its key."""
    q, k = (normal(n, n_k, d, seed=i) / np.sqrt(d) for i in range(2))
    decays = (n, n_v, d) if by_channel else (n, n_v)
    v, g = normal(n, n_v, d, seed=2), -np.exp(normal(*decays, seed=3) - 2)
    beta = 1 / (1 + np.exp(normal(n, n_v, seed=4)))

    def make(t: Tokens, states: Tensor, slots: Array) -> Tensor:
        sources = [*(leaf(x[t]) for x in (q, k, v, g, beta)), states, ids(slots)]
        return ops.gated_delta_net(*sources, interleaved=interleaved)

    return make


# the makers, and the size of a state
RECURRENCES: Final[dict[str, tuple[Make, int]]] = {
    "ssm_conv 4": (conv(150, 4, bias=False), 3 * 150),
    "ssm_conv 4 bias": (conv(1072, 4, bias=True), 3 * 1072),  # several blocks of channels
    "ssm_conv 3 bias": (conv(37, 3, bias=True), 2 * 37),
    "ssm_conv 2": (conv(16, 2, bias=False), 16),
    "ssm_scan heads": (scan(64, 4, 16, 2, d=True), 64 * 4 * 16),
    "ssm_scan heads part": (scan(50, 2, 9, 1), 50 * 2 * 9),
    "ssm_scan channels": (scan(1, 50, 16, 1, d=True), 50 * 16),
    "ssm_scan channels 64": (scan(1, 64, 5, 1), 64 * 5),
    "gated_delta_net 32": (delta(32, 2, 4, interleaved=True), 32 * 32 * 4),
    "gated_delta_net 42": (delta(42, 2, 6), 42 * 42 * 6),
    "gated_delta_net 64": (delta(64, 1, 2), 64 * 64 * 2),
    "gated_delta_net channels 42": (delta(42, 2, 6, by_channel=True), 42 * 42 * 6),
    "gated_delta_net channels 64": (delta(64, 2, 2, by_channel=True), 64 * 64 * 2),
}


def states(size: int, n_slots: int = N_SLOTS) -> Tensor:
    """States with numbers in each slot."""
    return leaf(normal(n_slots, size, seed=9) / 4)
