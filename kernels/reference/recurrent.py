"""Kernels of graph/ops/recurrent.py: recurrences, token by token, over states in slots.

Tested by tests/kernels/test_recurrent.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from ...graph import Tensor
from ...graph.op import DeltaParams, Op, UnaryOp
from ...graph.tensor import params_of
from ..plan.node_params import STATE_COLUMNS, has_channel_decay, has_head_decay, state_matrix
from .arrays import Array, F32Array, NumpyKernel, check_index, read, store
from .elementwise import FUNCTIONS


class _Step(NamedTuple):
    """A token, and the places of its states: one is read, the other one written."""

    token: int
    before: F32Array
    after: F32Array


def _steps(node: Tensor, states: Array, slots: Array) -> Iterator[_Step]:
    """Yield the tokens in their order. `before` is a copy."""
    n_slots = states.shape[2]
    check_index(node, "slot", slots[0, 0, :, 1], n_slots)
    check_index(node, "slot", np.maximum(slots[0, 0, :, 0], 0), n_slots)
    for t, (src, dst) in enumerate(slots[0, 0]):
        before = np.zeros_like(states[0, 0, dst]) if src < 0 else states[0, 0, src].copy()
        yield _Step(t, before, states[0, 0, dst])


def _matrices(states: F32Array, n_rows: int, n_columns: int) -> F32Array:
    """A copy of the matrices [n, n_rows, n_columns] of a vector of states in blocks."""
    heads, size = states.reshape(-1, n_rows * n_columns), n_rows * STATE_COLUMNS
    parts = np.split(heads, range(size, heads.shape[1], size), axis=1)
    blocks = [part.reshape(len(heads), n_rows, -1) for part in parts]
    return np.concatenate(blocks, axis=2)


def _blocks(matrices: F32Array) -> F32Array:
    """The vector of states in blocks of the matrices [n, n_rows, n_columns]."""
    parts = np.split(matrices, range(STATE_COLUMNS, matrices.shape[2], STATE_COLUMNS), axis=2)
    vector: F32Array = np.concatenate([p.reshape(len(p), -1) for p in parts], axis=1).reshape(-1)
    return vector


def _ssm_conv(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    x, w = read(node, srcs, 0)[0, 0], read(node, srcs, 1)[0, 0]  # (n_tokens, C), (C, K)
    bias = srcs[4][0, 0, 0] if len(srcs) > 4 else np.float32(0)
    result = np.empty_like(x)
    for t, before, after in _steps(node, srcs[2], srcs[3]):
        window = np.vstack([before.reshape(-1, x.shape[1]), x[t : t + 1]])
        y = np.zeros_like(x[t])
        for k, column in enumerate(window):
            y = y + w[:, k] * column
        result[t] = y + bias
        after[...] = window[1:].reshape(-1)
    store(node.type, dst, result)


def _ssm_scan(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    x, a = read(node, srcs, 0)[0], read(node, srcs, 2)[0, 0]  # (n_tokens, n_head, head_dim)
    step = FUNCTIONS[UnaryOp.SOFTPLUS](read(node, srcs, 1)[0, 0])
    n_shared = x.shape[1] // srcs[3].shape[2]
    b, c = (np.repeat(read(node, srcs, i)[0], n_shared, axis=1) for i in (3, 4))
    d = srcs[7][0, 0, 0][:, None] if len(srcs) > 7 else np.float32(0)
    result = np.empty_like(x)
    for t, before, after in _steps(node, srcs[5], srcs[6]):
        decay = np.exp(step[t, :, None] * a)  # (n_head, 1 or d_state)
        added = step[t, :, None] * x[t]  # (n_head, head_dim)
        s = _matrices(before, *state_matrix(node))
        if has_head_decay(node):
            s = s * decay[:, :, None] + b[t, :, :, None] * added[:, None]
            y = (s * c[t, :, :, None]).sum(axis=1, dtype=np.float32)
        else:  # (1, d_state, n_head)
            s = s * decay.T + b[t].T * added.T
            y = (s * c[t].T).sum(axis=1, dtype=np.float32).T
        after[...] = _blocks(s)
        result[t] = y + d * x[t]
    store(node.type, dst, result)


def _gated_delta_net(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    q, k, v = (read(node, srcs, i)[0] for i in range(3))  # (n_tokens, n_k or n_v, d)
    g, beta = read(node, srcs, 3), read(node, srcs, 4)[0, 0]
    decay = np.exp(g[0] if has_channel_decay(node) else g[0, 0, :, :, None])
    n_k, n_v = k.shape[1], v.shape[1]
    heads = np.arange(n_v)
    heads = heads % n_k if params_of(node, DeltaParams).interleaved else heads // (n_v // n_k)
    result = np.empty_like(v)
    for t, before, after in _steps(node, srcs[5], srcs[6]):
        s = _matrices(before, *state_matrix(node)) * decay[t, :, :, None]
        key, query = k[t, heads, :, None], q[t, heads, :, None]
        known = (s * key).sum(axis=1, dtype=np.float32)
        s = s + key * (beta[t, :, None] * (v[t] - known))[:, None]
        result[t] = (s * query).sum(axis=1, dtype=np.float32)
        after[...] = _blocks(s)
    store(node.type, dst, result)


KERNELS: Final[dict[Op, NumpyKernel]] = {
    Op.SSM_CONV: _ssm_conv,
    Op.SSM_SCAN: _ssm_scan,
    Op.GATED_DELTA_NET: _gated_delta_net,
}
