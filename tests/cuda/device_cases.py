"""Op cases of real models' sizes, for a real GPU: too large for an emulated one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import Any, Final

import numpy as np
from op_case import OpCase, numbers, rows, weights
from reference_run import ids, leaf

from lamella.graph import GGMLType, RopeMode, Tensor, ops

F32, F16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.Q8_0
TYPES: Final = [
    GGMLType[name]
    for name in "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K".split()  # noqa: SIM905
]
DEPTH: Final = 1500  # positions, in the middle of a partition

Tokens = Sequence[int]


@cache
def large_cases() -> tuple[OpCase, ...]:
    return tuple(
        case for family in (_products, _experts, _attention, _rows, _data) for case in family()
    )


def _products() -> Iterator[OpCase]:
    for type, n in product(TYPES, (1, 8, 40, 512)):
        for k, m in ((4096, 4096), (896, 4864)) if type in (F16, Q8_0) else ((4096, 1024),):
            yield OpCase(
                f"mul_mat {type.name} {k}x{m}x{n}",
                lambda t, type=type, k=k, m=m, n=n: ops.mul_mat(  # type: ignore[misc]
                    weights(type, m, k), rows(t, k, n)
                ),
                n_tokens=n,
                limit=1e-10,
            )


def _experts() -> Iterator[OpCase]:
    for type, n in product((F32, F16, GGMLType.Q4_0, GGMLType.Q4_K, Q8_0), (1, 16, 300)):

        def build(t: Tokens, type: GGMLType = type, n: int = n) -> Tensor:
            chosen = np.argsort(np.random.default_rng(2).random((n, 32)))[:, :8]
            return ops.mul_mat_id(
                weights(type, 32, 768, 2048), leaf(numbers(n, 1, 2048)[t]), ids(chosen[t])
            )

        yield OpCase(f"mul_mat_id {type.name} 32x768x2048x{n}", build, 2, n, 1e-10)


def _attention() -> Iterator[OpCase]:
    all, some = 0, 700  # positions that a token attends to
    kinds = [(64, F16), (80, F16), (128, F16), (256, F16), (128, Q8_0), (128, F32)]
    for (head_dim, type), n, n_swa in product(kinds, (1, 24, 300), (all, some)):
        name = f"window {n_swa} of {DEPTH}" if n_swa else f"{DEPTH}"
        yield OpCase(
            f"flash_attn_ext {head_dim} {type.name} {name}x{n}",
            partial(_attend, head_dim=head_dim, type=type, n=n, n_swa=n_swa),
            axis=2,
            n_tokens=n,
            limit=1e-10,
        )


def _attend(t: Tokens, head_dim: int, type: GGMLType, n: int, n_swa: int) -> Tensor:
    """The last tokens of a sequence; every fifth token is one of the first of another sequence.

    Heads have sinks if there is a window.
    """
    n_pages = DEPTH // 32 + 1
    other = np.arange(n) % 5 == 4
    pos = np.where(other, 0, DEPTH - n) + np.arange(n)
    k, v = (weights(type, 2 * n_pages * 32, 8 * head_dim, seed=seed) for seed in (1, 2))
    pages = np.random.default_rng(1).permutation(2 * n_pages).reshape(2, n_pages)
    q = leaf(numbers(n, 32, head_dim)[t])
    begin = np.maximum(0, pos + 1 - (n_swa or len(pos) + DEPTH))
    tokens = (other[t], pos[t], begin[t], pos[t] + 1)
    args = (q, k, v, ids(pages), *map(ids, tokens))
    params: dict[str, Any] = {"sinks": leaf(np.arange(32) - 20) if n_swa else None, "n_swa": n_swa}
    return ops.flash_attn_ext(*args, page_size=32, scale=head_dim**-0.5, **params)


def _rows() -> Iterator[OpCase]:
    for n in (1, 64, 512):
        yield OpCase(
            f"rms_norm 4096x{n}",
            lambda t, n=n: ops.rms_norm(rows(t, 4096, n), 1e-5),  # type: ignore[misc]
            n_tokens=n,
        )
        yield OpCase(
            f"swiglu 14336x{n}",
            lambda t, n=n: ops.swiglu(  # type: ignore[misc]
                rows(t, 14336, n), rows(t, 14336, n, seed=3)
            ),
            n_tokens=n,
        )
        yield OpCase(
            f"rope 32x128x{n}",
            lambda t, n=n: ops.rope(  # type: ignore[misc]
                leaf(numbers(n, 32, 128)[t]),
                ids(np.arange(n)[t] * 17),
                None,
                n_dims=128,
                mode=RopeMode.NEOX,
            ),
            axis=2,
            n_tokens=n,
            limit=1e-10,
        )
    for n in (1, 64):
        yield OpCase(
            f"soft_max 4096x{n}", lambda t, n=n: ops.soft_max(rows(t, 4096, n)), n_tokens=n  # type: ignore[misc]
        )  # fmt: skip
        for k in (1, 64, 1024):
            yield OpCase(
                f"top_k 128256x{n} {k}",
                lambda t, k=k, n=n: ops.top_k(rows(t, 128256, n), k),  # type: ignore[misc]
                n_tokens=n,
                limit=0,
            )


def _data() -> Iterator[OpCase]:
    places = np.random.default_rng(1).permutation(4096)[:512]
    for type in (F16, Q8_0):
        yield OpCase(
            f"set_rows {type.name} 1024x512",
            lambda t, type=type: ops.set_rows(  # type: ignore[misc]
                leaf(np.zeros((4096, 1024)), type), rows(t, 1024, 512), ids(places[t])
            ),
            axis=None,
            n_tokens=512,
            limit=0,
        )
    for type in TYPES:
        yield OpCase(
            f"get_rows {type.name} 4096x512",
            lambda t, type=type: ops.get_rows(weights(type, 4096, 4096), ids(places[t])),  # type: ignore[misc]
            n_tokens=512,
            limit=1e-14,
        )
