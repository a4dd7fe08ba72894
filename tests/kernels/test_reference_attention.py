"""Paged attention of the reference kernels, compared with float64 matrices and a causal mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference_run import (
    F64Array,
    assert_close,
    bits,
    compute,
    data,
    each_type,
    ids,
    leaf,
    normal,
    run,
    values_of,
)

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops

KV_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0)

PAGE = 4
# two sequences in a pool of 6 pages; -1: no page yet
TABLE = [[5, 0, 3], [2, 4, -1]]
SEQ = [0, 1, 0, 1, 0]
POS = [9, 0, 4, 7, 11]


def node_of(q: Tensor, k: Tensor, v: Tensor, **params: Any) -> Tensor:
    args: dict[str, Any] = {"pages": TABLE, "seq": SEQ, "pos": POS, "scale": 0.3, **params}
    pos = np.array(args["pos"], int)
    args = {"begin": 0 * pos, "end": pos + 1, **args}
    tokens = (ids(args.pop(name)) for name in ("pages", "seq", "pos", "begin", "end"))
    return ops.flash_attn_ext(q, k, v, *tokens, page_size=PAGE, **args)


def attention(
    q: F64Array,
    k: F64Array,
    v: F64Array,
    n_head_kv: int,
    scale: float = 0.3,
    slopes: list[float] | None = None,
    softcap: float = 0.0,
    *,
    causal: bool = True,
) -> F64Array:
    """Unpaged: each sequence laid out flat, all scores at once, then the causal mask, if any.

    q (n_tokens, n_head, head_dim), k and v (n_cells, heads * dims) -> (1, n_tokens, n_head, dims).
    """
    n_tokens, n_head, head_dim = q.shape
    cells = np.array(TABLE)[SEQ][:, :, None] * PAGE + np.arange(PAGE)
    cells = cells.reshape(n_tokens, -1)  # cell of each position, per token
    share = n_head // n_head_kv
    keys = np.repeat(k[cells].reshape(*cells.shape, n_head_kv, head_dim), share, axis=2)
    values = np.repeat(v[cells].reshape(*cells.shape, n_head_kv, -1), share, axis=2)
    scores = np.einsum("thd,tjhd->thj", q, keys) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(cells.shape[1]) - np.array(POS)[:, None]
    if slopes:
        scores = scores - np.array(slopes)[:, None] * abs(distance)[:, None, :]
    weights = np.where(causal & (distance[:, None, :] > 0), 0.0, np.exp(scores))
    weights /= weights.sum(axis=-1, keepdims=True)
    result: F64Array = np.einsum("thj,tjhd->thd", weights, values)[None]
    return result


def pool(n_head_kv: int, head_dim: int, type: GGMLType = GGMLType.F32, seed: int = 1) -> Tensor:
    return leaf(normal(6 * PAGE, n_head_kv * head_dim, seed=seed), type)


@each_type(KV_TYPES)
@pytest.mark.parametrize(("n_head", "n_head_kv"), [(1, 1), (4, 4), (6, 2), (4, 1)])
def test_attention(type: GGMLType, n_head: int, n_head_kv: int) -> None:
    q = leaf(normal(5, n_head, 32))
    k, v = pool(n_head_kv, 32, type), pool(n_head_kv, 32, type, seed=2)
    expected = attention(values_of(q)[0], values_of(k)[0, 0], values_of(v)[0, 0], n_head_kv)
    assert_close(run(node_of(q, k, v)), expected)


def test_attention_with_other_types_and_dims_of_k_and_v() -> None:
    q = leaf(normal(5, 6, 24))
    k, v = pool(2, 24, GGMLType.F16), pool(2, 16, GGMLType.Q8_0, seed=2)
    node = node_of(q, k, v)
    assert node.ne == (16, 6, 5, 1)
    expected = attention(values_of(q)[0], values_of(k)[0, 0], values_of(v)[0, 0], 2)
    assert_close(run(node), expected)


def test_attention_with_softcap() -> None:
    q, k, v = normal(5, 4, 8), pool(2, 8), pool(2, 8, seed=2)
    node = node_of(leaf(q), k, v, softcap=1.5, scale=0.9)
    expected = attention(q, values_of(k)[0, 0], values_of(v)[0, 0], 2, scale=0.9, softcap=1.5)
    assert_close(run(node), expected)


def test_attention_with_alibi() -> None:
    q, k, v = normal(5, 6, 8), pool(2, 8), pool(2, 8, seed=2)
    # six heads: the slopes of four, then every other one of eight (arXiv 2108.12409)
    slopes = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]
    for softcap in (0.0, 2.0):
        node = node_of(leaf(q), k, v, max_bias=8.0, softcap=softcap)
        expected = attention(
            q, values_of(k)[0, 0], values_of(v)[0, 0], 2, slopes=slopes, softcap=softcap
        )
        assert_close(run(node), expected)
    pages = np.array(TABLE) % 6  # all positions have one
    node = node_of(leaf(q), k, v, max_bias=8.0, pages=pages, end=[3 * PAGE] * 5)
    expected = attention(q, values_of(k)[0, 0], values_of(v)[0, 0], 2, slopes=slopes, causal=False)
    assert_close(run(node), expected)


def test_attention_of_strided_sources() -> None:
    q = leaf(normal(4, 5, 8))  # heads before tokens
    both = leaf(normal(6 * PAGE, 32, seed=1))  # K and V side by side
    k = ops.view(both, (16, 6 * PAGE), nb=(4, 128))
    v = ops.view(both, (16, 6 * PAGE), nb=(4, 128), offset=64)
    node = node_of(ops.permute(q, (0, 2, 1, 3)), k, v)
    cells = values_of(both)[0, 0]
    expected = attention(values_of(q)[0].transpose(1, 0, 2), cells[:, :16], cells[:, 16:], 2)
    assert_close(run(node), expected)


def test_first_token_of_a_sequence_gets_its_own_value() -> None:
    q, k, v = leaf(normal(1, 2, 8)), pool(2, 8), pool(2, 8, seed=2)
    result = run(node_of(q, k, v, seq=[1], pos=[0]))
    assert (result[0, 0].ravel() == values_of(v)[0, 0, 2 * PAGE]).all()


def test_attention_after_set_rows_sees_this_steps_tokens() -> None:
    k, v = pool(1, 8), pool(1, 8, seed=2)
    new = normal(2, 8, seed=3)
    cells = ids([2 * PAGE, 2 * PAGE + 1], GGMLType.I64)
    k_now, v_now = (ops.set_rows(t, leaf(new), cells) for t in (k, v))
    result = run(node_of(leaf(normal(2, 1, 8)), k_now, v_now, seq=[1, 1], pos=[0, 1]))
    assert (result[0, 0, 0] == new[0]).all()
    low, high = np.sort(new, axis=0)
    assert ((low <= result[0, 1, 0]) & (result[0, 1, 0] <= high)).all()


@each_type(KV_TYPES)
def test_bits_do_not_depend_on_the_places_of_pages(type: GGMLType) -> None:
    q, k, v = leaf(normal(5, 4, 32)), pool(2, 32, type), pool(2, 32, type, seed=2)
    order = [4, 2, 5, 0, 1, 3]  # page p goes to page order[p]
    moved = [leaf(np.zeros((6 * PAGE, 64)), type) for _ in range(2)]
    for old, new in zip((k, v), moved, strict=True):
        pages = data(old)[0, 0].reshape(6, PAGE, -1)
        data(new)[0, 0].reshape(6, PAGE, -1)[order] = pages
    table = [[order[page] if page >= 0 else -1 for page in row] for row in TABLE]
    assert bits(node_of(q, *moved, pages=table)) == bits(node_of(q, k, v))


def test_large_scores_do_not_overflow() -> None:
    q, k, v = leaf(normal(5, 2, 8)), pool(2, 8), pool(2, 8, seed=2)
    assert np.isfinite(run(node_of(q, k, v, scale=1e30))).all()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"seq": [2]}, "seq 2 must be at least 0 and below 2"),
        ({"seq": [-1]}, "seq -1 must be"),
        ({"end": [13]}, "end 13 must be at least 0 and below 13"),
        ({"end": [-1]}, "end -1 must be"),
        ({"begin": [-1]}, "begin -1 must be at least 0 and below 2"),
        ({"begin": [4], "end": [3]}, "begin 4 must be at least 0 and below 4"),
        ({"seq": [1], "pos": [8]}, "page -1 must be at least 0 and below 6"),
        ({"pages": [[6]]}, "page 6 must be"),
    ],
)
def test_attention_refuses_indices_out_of_range(args: dict[str, Any], message: str) -> None:
    q, k, v = leaf(normal(1, 2, 8)), pool(2, 8), pool(2, 8)
    node = node_of(q, k, v, **{"seq": [0], "pos": [0], **args})
    with pytest.raises(BackendError, match=f"flash_attn_ext .*: {message}"):
        compute(node)


def test_attention_without_tokens() -> None:
    q = leaf(np.zeros((0, 2, 8)))
    assert run(node_of(q, pool(2, 8), pool(2, 8), seq=[], pos=[])).shape == (1, 0, 2, 8)
