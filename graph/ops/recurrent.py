"""Builders of recurrences: ops whose result depends on a state that earlier tokens left.

The states of a layer are the columns of one tensor [state_size, n_slots], the slots. An op computes
its tokens strictly in their order, for each token t:

    state = states[:, slots[0, t]], or zeros if slots[0, t] is -1
    result[t], state = step(state, x[t])
    states[:, slots[1, t]] = state

So the bits of a token depend on its sequence only: not on the cut of tokens into batches, nor on
other sequences in the batch. A token that writes to another slot than it reads leaves a checkpoint
behind. Padding tokens write to slot 0, which no sequence has.

`states` is written in place, beside the result. In a graph, no other node may use these states.
"""

from __future__ import annotations

from ..op import DeltaParams, Op
from ..tensor import Tensor
from ..types import GGMLType
from .check import require, require_type


def ssm_conv(
    x: Tensor, w: Tensor, states: Tensor, slots: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Causal convolution along the tokens of a sequence, each channel alone (arXiv 2312.00752).

    y[c, t] = bias[c] + sum over k of w[k, c] * x[c, t - K + 1 + k]. The state is the last K - 1
    columns of x: column i, oldest first, has the elements i * C to (i + 1) * C.

    Args:
        x: F32 [C, n_tokens].
        w: F32 [K, C].
        states: F32 [(K - 1) * C, n_slots], written in place.
        slots: I32 [2, n_tokens].
        bias: F32 [C] or None.
    """
    op = "ssm_conv"
    _require_rows(op, x=x, w=w)
    require(x.ne[2:] == (1, 1), op, "x must be a matrix", x)
    fits = w.ne[1:] == (x.ne[0], 1, 1) and w.ne[0] > 1
    require(fits, op, "w must be [K, x.ne[0]], with K above 1", x, w)
    _require_states(op, states, (w.ne[0] - 1) * x.ne[0], slots, x.ne[1])
    src = [x, w, states, slots]
    if bias is not None:
        _require_vector(op, "bias", bias, x.ne[0])
        src.append(bias)
    return Tensor(GGMLType.F32, x.ne, op=Op.SSM_CONV, src=src)


def ssm_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    states: Tensor,
    slots: Tensor,
    d: Tensor | None = None,
) -> Tensor:
    """The selective scan of Mamba (arXiv 2312.00752) and Mamba 2 (arXiv 2405.21060).

    For each element i of head h, whose state has d_state numbers s[n]:

        step = softplus(dt[h])
        s[n] = s[n] * exp(step * a[n, h]) + step * x[i, h] * b[n, group]
        y[i, h] = sum over n of s[n] * c[n, group] + d[h] * x[i, h]

    Heads share b and c in groups of n_head / n_group. The heads of Mamba 1 have one element, and a
    decay for each number of the state.

    Args:
        x: F32 [head_dim, n_head, n_tokens].
        dt: F32 [n_head, n_tokens], the steps before softplus.
        a: F32 [1, n_head] (Mamba 2); or [d_state, n_head] if head_dim and n_group are 1 (Mamba 1).
        b: F32 [d_state, n_group, n_tokens].
        c: F32, as b.
        states: F32 [d_state * head_dim * n_head, n_slots], written in place. Kernels know the
            order of a state's elements (`kernels/plan/node_params.py`).
        slots: I32 [2, n_tokens].
        d: F32 [n_head] or None.
    """
    op = "ssm_scan"
    _require_rows(op, x=x, dt=dt, a=a, b=b, c=c)
    head_dim, n_head, n_tokens, _ = x.ne
    d_state, n_group = b.ne[:2]
    require(x.ne[3] == 1, op, "x must have at most three dimensions", x)
    fits = dt.ne == (n_head, n_tokens, 1, 1)
    require(fits, op, f"dt must be [{n_head}, {n_tokens}]", x, dt)
    fits = a.ne[0] in (1, d_state) and a.ne[1:] == (n_head, 1, 1)
    require(fits, op, f"a must be [{d_state}, {n_head}] or [1, {n_head}]", x, a, b)
    fits = b.ne[2:] == (n_tokens, 1) and n_group > 0 and n_head % n_group == 0
    require(fits, op, "b must be [d_state, a divisor of n_head, n_tokens]", x, b)
    require(c.ne == b.ne, op, "b and c must have the same shape", b, c)
    if a.ne[0] > 1:
        alone = head_dim == 1 and x.nb[1] == x.nb[0]
        require(
            alone, op, f"a of [{d_state}, {n_head}] needs x of [1, {n_head}] without gaps", x, a
        )
        require(n_group == 1, op, f"a of [{d_state}, {n_head}] needs b of one group", a, b)
    _require_states(op, states, d_state * head_dim * n_head, slots, n_tokens)
    src = [x, dt, a, b, c, states, slots]
    if d is not None:
        _require_vector(op, "d", d, n_head)
        src.append(d)
    return Tensor(GGMLType.F32, x.ne, op=Op.SSM_SCAN, src=src)


def gated_delta_net(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    states: Tensor,
    slots: Tensor,
    *,
    interleaved: bool,
) -> Tensor:
    """The gated delta rule (arXiv 2412.06464). The state of a value head is a matrix S [d, d]:

        S *= exp(g);  S += k (outer) beta * (v - S^T k);  result = S^T q

    A head has one decay, or one for each row of S, an element of its key (arXiv 2510.26692).

    Args:
        q: F32 [d, n_k, n_tokens], with its norm and factor.
        k: F32, as q.
        v: F32 [d, n_v, n_tokens].
        g: F32 [n_v, n_tokens] or [d, n_v, n_tokens], the logarithms of decays.
        beta: F32 [n_v, n_tokens].
        states: F32 [d * d * n_v, n_slots], written in place. Kernels know the order of a state's
            elements (`kernels/plan/node_params.py`).
        slots: I32 [2, n_tokens].
        interleaved: value head h has key head h % n_k if True, else h * n_k // n_v.
    """
    op = "gated_delta_net"
    _require_rows(op, q=q, k=k, v=v, g=g, beta=beta)
    d, n_v, n_tokens, _ = v.ne
    require(v.ne[3] == 1, op, "v must have at most three dimensions", v)
    n_k = q.ne[1]
    fits = q.ne == (d, n_k, n_tokens, 1) and n_k > 0 and n_v % n_k == 0
    require(fits, op, "q must be [v.ne[0], a divisor of v.ne[1], v.ne[2]]", q, v)
    require(k.ne == q.ne, op, "q and k must have the same shape", q, k)
    fits = g.ne in (beta.ne, v.ne)
    require(fits, op, "g must have the shape of beta or of v", v, g, beta)
    fits = beta.ne == (n_v, n_tokens, 1, 1)
    require(fits, op, f"beta must be [{n_v}, {n_tokens}]", v, beta)
    _require_states(op, states, d * d * n_v, slots, n_tokens)
    src = (q, k, v, g, beta, states, slots)
    params = DeltaParams(interleaved)
    return Tensor(GGMLType.F32, v.ne, op=Op.GATED_DELTA_NET, params=params, src=src)


def _require_rows(op: str, **tensors: Tensor) -> None:
    for what, t in tensors.items():
        require_type(op, what, t, GGMLType.F32)
        require(t.has_contiguous_rows, op, f"rows of {what} must be contiguous", t)


def _require_vector(op: str, what: str, t: Tensor, n: int) -> None:
    require_type(op, what, t, GGMLType.F32)
    vector = t.ne == (n, 1, 1, 1) and t.is_contiguous
    require(vector, op, f"{what} must be a contiguous vector of {n}", t)


def _require_states(op: str, states: Tensor, size: int, slots: Tensor, n_tokens: int) -> None:
    require_type(op, "states", states, GGMLType.F32)
    fits = states.ne[0] == size and states.ne[2:] == (1, 1) and states.has_contiguous_rows
    require(fits, op, f"states must be a matrix with contiguous rows of {size}", states)
    owns = states.op is Op.NONE
    require(owns, op, "states must be a leaf, for they are written in place", states)
    require_type(op, "slots", slots, GGMLType.I32)
    fits = slots.ne == (2, n_tokens, 1, 1) and slots.is_contiguous
    require(fits, op, f"slots must be [2, {n_tokens}], contiguous", slots)
