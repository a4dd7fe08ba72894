"""The reference kernels of recurrences, compared with formulas over whole sequences in float64."""

from __future__ import annotations

import numpy as np
import pytest
from reference_run import F64Array, assert_close, compute, data, ids, leaf, normal, values_of

from lamella.base.errors import BackendError
from lamella.graph import Tensor, ops

N = 6  # tokens
# two sequences, in turns: one begins with zeros, the other goes on from slot 3
SLOTS = np.array([[-1, 1], [3, 3], [1, 1], [1, 2], [3, 3], [2, 2]])
FIRST, SECOND = [0, 2, 3, 5], [1, 4]


def states_of(size: int) -> Tensor:
    return leaf(normal(5, size, seed=9))


def assert_slots_kept(node: Tensor, states: Tensor, before: F64Array) -> None:
    """Slots 0 and 4 are not used."""
    assert (values_of(states)[0, 0, [0, 4]] == before[0, 0, [0, 4]]).all(), node


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_convolution_sees_the_last_columns_of_its_sequence(with_bias: bool) -> None:
    n_channels, n_taps = 7, 4
    x, w, bias = normal(N, n_channels), normal(n_channels, n_taps, seed=1), normal(7, seed=2)
    states = states_of(3 * n_channels)
    before = values_of(states)
    extra = (leaf(bias),) if with_bias else ()
    node = ops.ssm_conv(leaf(x), leaf(w), states, ids(SLOTS), *extra)
    result = values_of(compute(node))[0, 0]
    starts = {0: np.zeros((3, n_channels)), 3: before[0, 0, 3].reshape(3, n_channels)}
    for tokens, start in ((FIRST, starts[0]), (SECOND, starts[3])):
        columns = np.vstack([start, x[tokens]])
        for i, t in enumerate(tokens):
            y = np.einsum("ck,kc->c", w, columns[i : i + 4]) + with_bias * bias
            assert_close(result[t], y)
    after = values_of(states)[0, 0]
    assert (after[2].reshape(3, -1) == x[[2, 3, 5]].astype(np.float32)).all()
    assert (after[1].reshape(3, -1) == np.vstack([np.zeros((1, 7)), x[[0, 2]]])).all()
    assert (after[3].reshape(3, -1)[1:] == x[[1, 4]]).all()
    assert_slots_kept(node, states, before)


@pytest.mark.parametrize(
    ("head_dim", "n_head", "by_state"),
    [(1, 4, False), (3, 4, False), (40, 4, False), (1, 4, True), (1, 40, True)],
)
def test_a_scan_is_a_sum_over_all_earlier_tokens(
    head_dim: int, n_head: int, by_state: bool
) -> None:
    n_group, d_state = 1 if by_state else 2, 5
    x, dt = normal(N, n_head, head_dim), normal(N, n_head, seed=1)
    a = -np.exp(normal(n_head, d_state if by_state else 1, seed=2))
    b, c = normal(N, n_group, d_state, seed=3), normal(N, n_group, d_state, seed=4)
    d, states = normal(n_head, seed=5), states_of(d_state * head_dim * n_head)
    before = values_of(states)
    leaves = [leaf(v) for v in (x, dt, a, b, c)]
    leaves += [states, ids(SLOTS), leaf(d)]
    node = ops.ssm_scan(*leaves)
    result = values_of(compute(node))[0]
    step, b, c = np.log1p(np.exp(dt)), *(np.repeat(m, n_head // n_group, axis=1) for m in (b, c))
    for i, t in enumerate(FIRST):
        y = d[:, None] * x[t]
        for j in FIRST[: i + 1]:
            between = [s for s in FIRST if j < s <= t]
            decay = np.exp(step[between].sum(axis=0)[:, None] * a)  # (n_head, d_state or 1)
            y = y + (decay * b[j] * c[t]).sum(axis=1)[:, None] * step[j][:, None] * x[j]
        assert_close(result[t], y)
    assert_slots_kept(node, states, before)


@pytest.mark.parametrize("d", [4, 40])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("by_channel", [False, True])
def test_a_delta_net_is_a_product_of_matrices(d: int, interleaved: bool, by_channel: bool) -> None:
    n_k, n_v = 2, 6
    q, k = normal(N, n_k, d), normal(N, n_k, d, seed=1) / np.sqrt(d)
    v, beta = normal(N, n_v, d, seed=2), normal(N, n_v, seed=4)
    g = -np.exp(normal(N, n_v, *(d,) * by_channel, seed=3))
    states = states_of(d * d * n_v)
    before = values_of(states)
    leaves = [leaf(x) for x in (q, k, v, g, beta)]
    leaves += [states, ids(SLOTS)]
    node = ops.gated_delta_net(*leaves, interleaved=interleaved)
    result = values_of(compute(node))[0]
    for h in range(n_v):
        kh = h % n_k if interleaved else h // 3
        s = np.zeros((d, d))
        for t in FIRST:
            key = k[t, kh][:, None]
            s = (np.eye(d) - beta[t, h] * key * key.T) * np.exp(g[t, h]) @ s
            s = s + beta[t, h] * key * v[t, h]
            assert_close(result[t, h], s.T @ q[t, kh], 1e-5)
    assert_slots_kept(node, states, before)


def test_a_state_that_is_copied_goes_on_alike() -> None:
    """A slot holds all that a sequence needs: also where a state has several blocks of columns."""
    d = 40
    q, k, v = (leaf(normal(3, 1, d, seed=i) / 3) for i in range(3))
    g, beta = leaf(-np.ones((3, 1))), leaf(np.ones((3, 1)))
    states = states_of(d * d)

    def run(slots: list[list[int]]) -> F64Array:
        args = (q, k, v, g, beta, states, ids(slots))
        return values_of(compute(ops.gated_delta_net(*args, interleaved=False)))

    first = run([[-1, 1], [1, 2], [2, 2]])
    data(states)[0, 0, 4] = data(states)[0, 0, 1]
    assert (run([[-1, 0], [4, 4], [4, 3]]) == first).all()


@pytest.mark.parametrize("slot", [5, 1 << 30])
@pytest.mark.parametrize("place", [0, 1])
def test_a_wrong_slot_is_refused(slot: int, place: int) -> None:
    slots = SLOTS.copy()
    slots[2, place] = slot
    node = ops.ssm_conv(leaf(normal(N, 7)), leaf(normal(7, 4)), states_of(21), ids(slots))
    with pytest.raises(BackendError, match=f"slot {slot} must be at least 0 and below 5"):
        compute(node)


def test_a_token_must_write_to_a_slot() -> None:
    slots = SLOTS.copy()
    slots[5, 1] = -1
    node = ops.ssm_conv(leaf(normal(N, 7)), leaf(normal(7, 4)), states_of(21), ids(slots))
    with pytest.raises(BackendError, match="slot -1 must be at least 0 and below 5"):
        compute(node)
