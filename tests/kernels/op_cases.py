"""The op cases: one table for correctness, bits and timing of every kernel.

A case builds one node for some of its tokens; a token's data does not depend on the others. The
tests compare a backend's result with the NumPy reference within the case's limit, and its bits
between batches, threads and places in memory. `scripts/bench ops` times the same nodes. A test
fails if no case calls a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import numpy as np
from attention_cases import attention_cases
from op_case import (
    BF16,
    F16,
    F32,
    FLOATS,
    Q8_0,
    WEIGHT_TYPES,
    OpCase,
    Tokens,
    numbers,
    packed_weights,
    rows,
    weights,
)
from recurrent_cases import RECURRENCES, Make, conv, delta, scan, states
from reference_run import Array, ids, leaf, normal, unary

from lamella.graph import GGMLType, GluOp, RopeMode, SortOrder, Tensor, UnaryOp, ops
from lamella.kernels.cpu.packed.formats import FORMATS

WRITTEN: Final = (
    *(*FLOATS, Q8_0, GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.IQ4_NL, GGMLType.Q5_0, GGMLType.Q5_1),
)

EXPERTS: Final = np.array([[0, 3], [3, 1], [0, 1], [2, 3], [3, 0]])  # of each token
MANY_EXPERTS: Final = np.arange(64 * 8).reshape(64, 8) * 7 % 32

# the elements that each token's mask allows: none, few, some, half, all
MASK_300: Final = normal(5, 300) > np.array([9.0, 2.0, 1.0, 0.0, -9.0])[:, None]

# --- families of cases ---


def unary_cases() -> Iterator[OpCase]:
    makers: dict[str, Callable[[Tensor], Tensor]] = {
        "scale": lambda x: ops.scale(x, 0.3),
        "scale+bias": lambda x: ops.scale(x, 0.3, -1.5),
        "sqr": ops.sqr,
        "sqrt": lambda x: ops.sqrt(ops.sqr(x)),
        "log": lambda x: ops.log(ops.sqr(x)),
        "clamp": lambda x: ops.clamp(x, -0.5, 0.7),
        "fill": lambda x: ops.fill(x, 2.5),
        "sum_rows": ops.sum_rows,
        "norm": lambda x: ops.norm(x, 1e-5),
        "rms_norm": lambda x: ops.rms_norm(x, 1e-5),
        "soft_max": lambda x: ops.soft_max(x, scale=0.7),
        "diag_mask_inf": lambda x: ops.diag_mask_inf(x, 3),
        "diag_mask_zero": lambda x: ops.diag_mask_zero(x, 3),
        "argsort": ops.argsort,
        "argsort desc": lambda x: ops.argsort(x, SortOrder.DESC),
        "repeat": lambda x: ops.repeat(x, (3 * x.ne[0], x.ne[1])),
        "cont": lambda x: ops.cont(ops.view(x, (x.ne[0] - 3, x.ne[1]), x.nb, 8)),
        "dup": ops.dup,
    }
    exact = {"argsort", "argsort desc", "repeat", "cont", "dup", "diag_mask_inf", "diag_mask_zero"}
    alone = {"diag_mask_inf", "diag_mask_zero"}  # a row's result depends on its index
    for name, make in makers.items():
        for k in (37, 1024):

            def build(t: Tokens, make: Callable[[Tensor], Tensor] = make, k: int = k) -> Tensor:
                return make(rows(t, k))

            axis = None if name in alone else 1
            yield OpCase(f"{name} {k}", build, axis, limit=0 if name in exact else 1e-11)
    for op in UnaryOp:
        for type in FLOATS if op is UnaryOp.SILU else (F32,):
            yield OpCase(
                f"{op.name.lower()} {type.name}",
                lambda t, op=op, type=type: unary(rows(t, 77, type=type), op),  # type: ignore[misc]
                limit=1e-11 if type is F32 else 1e-5,
            )


def glu_cases() -> Iterator[OpCase]:
    for op in GluOp:
        name = op.name.lower()
        yield OpCase(
            name,
            lambda t, op=op: ops.glu(rows(t, 172), rows(t, 172, seed=3), op),  # type: ignore[misc]
        )
        for swapped in (False, True):
            yield OpCase(
                f"{name} halves{' swapped' * swapped}",
                lambda t, op=op, s=swapped: ops.glu(rows(t, 90), None, op, s),  # type: ignore[misc]
            )
    yield OpCase(
        "swiglu 8192x32",
        lambda t: ops.swiglu(rows(t, 8192, 32), rows(t, 8192, 32, seed=3)),
        n_tokens=32,
        timed=True,
    )


def binary_cases() -> Iterator[OpCase]:
    builders = {"add": ops.add, "sub": ops.sub, "mul": ops.mul, "div": ops.div}
    for name, op in builders.items():
        for type in FLOATS:
            limit = {F32: 1e-12, F16: 1e-6, BF16: 1e-4}[type]
            yield OpCase(
                f"{name} {type.name}",
                lambda t, op=op, type=type: op(  # type: ignore[misc]
                    rows(t, 45, type=type), rows(t, 45, type=type, seed=3)
                ),
                limit=limit,
            )
        yield OpCase(
            f"{name} row",
            lambda t, op=op: op(rows(t, 1000), leaf(numbers(1000, seed=3))),  # type: ignore[misc]
        )
        yield OpCase(
            f"{name} column",
            lambda t, op=op: op(rows(t, 64), rows(t, 1, seed=3)),  # type: ignore[misc]
        )
        yield OpCase(
            f"{name} heads",
            lambda t, op=op: op(  # type: ignore[misc]
                leaf(numbers(5, 4, 24)[t]), leaf(numbers(1, 2, 12, seed=3))
            ),
            axis=2,
        )
    for type in FLOATS:
        yield OpCase(
            f"add_id {type.name}",
            lambda t, type=type: ops.add_id(  # type: ignore[misc]
                leaf(numbers(5, 2, 45)[t], type),
                leaf(numbers(4, 45, seed=3), type),
                ids(EXPERTS[t]),
            ),
            axis=2,
            limit={F32: 1e-12, F16: 1e-6, BF16: 1e-4}[type],
        )
    yield OpCase(
        "add_id 2048x8x64",
        lambda t: ops.add_id(
            leaf(numbers(64, 8, 2048)[t]), leaf(numbers(32, 2048, seed=3)), ids(MANY_EXPERTS[t])
        ),
        axis=2,
        n_tokens=64,
        timed=True,
    )
    yield OpCase(
        "add 2048x512",
        lambda t: ops.add(rows(t, 2048, 512), rows(t, 2048, 512, seed=3)),
        n_tokens=512,
        timed=True,
    )


def row_cases() -> Iterator[OpCase]:
    mask = np.where(normal(8, 40, seed=2) > 1, -np.inf, normal(8, 40, seed=3))
    for type in (F32, F16):
        yield OpCase(
            f"soft_max mask {type.name}",
            lambda t, type=type: ops.soft_max(  # type: ignore[misc]
                leaf(normal(6, 5, 40)[:, t]), leaf(mask[t], type), 0.4, 8.0
            ),
        )
    yield OpCase(
        "rms_norm heads",
        lambda t: ops.rms_norm(
            ops.view(leaf(numbers(5, 4, 96)[t]), (64, 4, len(t)), (4, 4 * 96, 16 * 96)), 1e-6
        ),
        axis=2,
    )
    yield OpCase("argsort 32000", lambda t: ops.argsort(rows(t, 32000)), limit=0, timed=True)
    yield OpCase(
        "argsort equal", lambda t: ops.argsort(leaf(np.round(numbers(5, 300)[t])), SortOrder.DESC),
        limit=0,
    )  # fmt: skip
    yield OpCase("argsort_top_k", lambda t: ops.argsort_top_k(rows(t, 64), 8).src[0], limit=0)
    yield from top_k_cases()
    yield OpCase(
        "rms_norm 2048x512",
        lambda t: ops.rms_norm(rows(t, 2048, 512), 1e-5),
        n_tokens=512,
        timed=True,
    )


def bits_of(mask: Array) -> Tensor:
    """The mask of a TOP_K, from an array of bools."""
    spare = -mask.shape[-1] % 32
    padded = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, spare)])
    return leaf(np.packbits(padded, axis=-1, bitorder="little").view(np.int32), GGMLType.I32)


def top_k_cases() -> Iterator[OpCase]:
    # many are equal: zeros of both signs, infinities, NaN
    edges = np.array([math.nan, 0.0, -0.0, math.inf, -math.inf, 1.5, -1e30])
    sources: dict[str, Callable[[Tokens], Tensor]] = {
        "64": lambda t: rows(t, 64),
        "1003": lambda t: rows(t, 1003),
        "equal 300": lambda t: leaf(np.round(numbers(5, 300)[t])),
        "edges 77": lambda t: leaf(edges[np.round(30 * numbers(5, 77)[t]).astype(int) % 7]),
        "rising 500": lambda t: leaf(np.sort(numbers(5, 500))[t]),
        "strided 120": lambda t: ops.transpose(leaf(numbers(5, 120)[t].T)),
    }
    for name, source in sources.items():
        for k in (1, 8, 64):
            yield OpCase(
                f"top_k {name} {k}",
                lambda t, source=source, k=k: ops.top_k(source(t), k),  # type: ignore[misc]
                limit=0,
            )
    yield OpCase("top_k all of 65", lambda t: ops.top_k(rows(t, 65), 65), limit=0)
    for k in (1, 40, 64):  # some rows allow fewer
        yield OpCase(
            f"top_k mask 300 {k}",
            lambda t, k=k: ops.top_k(rows(t, 300), k, bits_of(MASK_300[t])),  # type: ignore[misc]
            limit=0,
        )
    yield OpCase("top_k heads", lambda t: ops.top_k(leaf(numbers(5, 3, 40)[t]), 5), axis=2, limit=0)
    for k, n in ((1, 1), (64, 1), (64, 64)):
        yield OpCase(
            f"top_k 32000x{n} {k}",
            lambda t, k=k, n=n: ops.top_k(rows(t, 32000, n), k),  # type: ignore[misc]
            n_tokens=n,
            limit=0,
            timed=True,
        )


POSITIONS: Final = np.array([0, 3, 4095, 17, 100_000])


def rope_cases() -> Iterator[OpCase]:
    factors = np.linspace(1, 8, 32)
    kinds: dict[str, dict[str, Any]] = {
        "": {},
        " neox": {"mode": RopeMode.NEOX},
        " part": {"n_dims": 48},
        " part neox": {"n_dims": 48, "mode": RopeMode.NEOX},
        " factors": {"freq_factors": factors},
        " linear": {"freq_scale": 0.25},
        " yarn": {"freq_scale": 0.25, "ext_factor": 1.0, "n_ctx_orig": 4096, "attn_factor": 1.1},
        " yarn neox factors": {
            "mode": RopeMode.NEOX,
            "freq_factors": factors,
            "freq_scale": 0.5,
            "ext_factor": 1.0,
            "n_ctx_orig": 4096,
            "freq_base": 5e5,
        },
    }
    for name, params in kinds.items():
        for type in (F32, F16):
            limit = 1e-10 if type is F32 else 1e-6
            yield OpCase(
                f"rope{name} {type.name}",
                lambda t, p=params, type=type: _rope(t, type, dict(p)),  # type: ignore[misc]
                axis=2,
                limit=limit,
            )


def _rope(t: Tokens, type: GGMLType, params: dict[str, Any]) -> Tensor:
    factors = params.pop("freq_factors", None)
    x = leaf(numbers(5, 3, 64)[t], type)
    table = None if factors is None else leaf(factors)
    return ops.rope(x, ids(POSITIONS[t]), table, n_dims=params.pop("n_dims", 64), **params)


def matrix_cases() -> Iterator[OpCase]:
    for type in WEIGHT_TYPES:
        k = 512 if type.block_size > 32 else 160
        yield OpCase(
            f"mul_mat {type.name}",
            lambda t, type=type, k=k: ops.mul_mat(weights(type, 37, k), rows(t, k)),  # type: ignore[misc]
            limit=1e-10,
        )
        yield OpCase(
            f"mul_mat_id {type.name}",
            lambda t, type=type, k=k: _experts(t, type, k),  # type: ignore[misc]
            axis=2,
            limit=1e-10,
        )
        yield OpCase(
            f"get_rows {type.name}",
            lambda t, type=type, k=k: ops.get_rows(  # type: ignore[misc]
                weights(type, 37, k), ids(np.array([36, 0, 5, 5, 17])[t])
            ),
            limit=1e-14,
        )
    yield OpCase("mul_mat 1003", lambda t: ops.mul_mat(weights(F32, 9, 1003), rows(t, 1003)))
    yield OpCase(
        "mul_mat heads",
        lambda t: ops.mul_mat(weights(F16, 2, 11, 24), leaf(numbers(4, 5, 24)[:, t])),
    )
    yield OpCase(
        "mul_mat permuted",
        lambda t: ops.mul_mat(
            weights(F32, 2, 11, 24), ops.permute(leaf(numbers(5, 2, 24)[t]), (0, 2, 1, 3))
        ),
    )
    for type in (F32, F16, GGMLType.Q4_0, Q8_0, GGMLType.Q4_K, GGMLType.Q6_K):
        for n in (1, 8, 128):
            yield OpCase(
                f"mul_mat {type.name} 2048x2048x{n}",
                lambda t, type=type, n=n: ops.mul_mat(  # type: ignore[misc]
                    weights(type, 2048, 2048), rows(t, 2048, n)
                ),
                n_tokens=n,
                limit=1e-10,
                timed=True,
            )


def _experts(t: Tokens, type: GGMLType, k: int, make: Callable[..., Tensor] = weights) -> Tensor:
    return ops.mul_mat_id(make(type, 4, 7, k), leaf(numbers(5, 1, k)[t]), ids(EXPERTS[t]))


# the parts of each row, and the scales of each token: none, some, all, ...
LORA_PARTS: Final = np.array([0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 1])
LORA_SCALES: Final = np.array(
    [
        *([0, 0, 0], [0.5, 0, 0], [0, 0, 2], [1, -1, 0.25], [0, 0, 2]),
        *([0, 0, -3], [0, 0, 1], [0, 0, 1], [0, 1, 1], [-1, 0, 0]),
    ]
)


def lora_cases() -> Iterator[OpCase]:
    for k in (1, 77, 512):
        yield OpCase(
            f"lora_a {k}",
            lambda t, k=k: ops.lora_a(  # type: ignore[misc]
                weights(F32, 12, k), rows(t, k, 10), leaf(LORA_SCALES[t]), ids(LORA_PARTS)
            ),
            n_tokens=10,
        )
    products = normal(10, 12, seed=2) * (LORA_SCALES != 0)[:, LORA_PARTS]
    for n in (1, 45, 192):
        yield OpCase(
            f"lora_b {n}",
            lambda t, n=n: ops.lora_b(  # type: ignore[misc]
                rows(t, n, 10), weights(F32, 12, n), leaf(products[t])
            ),
            n_tokens=10,
        )
    for n in (1, 8, 128):
        yield OpCase(
            f"lora_a 2048x16x{n}",
            lambda t, n=n: ops.lora_a(  # type: ignore[misc]
                weights(F32, 16, 2048),
                rows(t, 2048, n),
                leaf(np.ones((len(t), 1))),
                ids(np.zeros(16)),
            ),
            n_tokens=n,
            timed=True,
        )
        yield OpCase(
            f"lora_b 2048x16x{n}",
            lambda t, n=n: ops.lora_b(  # type: ignore[misc]
                rows(t, 2048, n), weights(F32, 16, 2048), rows(t, 16, n, seed=2)
            ),
            n_tokens=n,
            timed=True,
        )


# the states of tokens of different sequences: one begins with zeros, one leaves a checkpoint
SLOTS: Final = np.array([[1, 1], [-1, 2], [3, 3], [4, 0], [5, 5]])


def recurrent_cases() -> Iterator[OpCase]:
    for name, (make, size) in RECURRENCES.items():
        yield OpCase(
            name,
            lambda t, make=make, size=size: make(t, states(size), SLOTS[t]),  # type: ignore[misc]
            axis=1 if name.startswith("ssm_conv") else 2,
            limit=1e-10,
        )
    for n, one in ((1, False), (8, False), (32, True)):  # tokens of different sequences, or of one
        sizes: dict[str, tuple[Make, int]] = {
            "ssm_conv 8192": (conv(8192, 4, bias=False, n=n), 3 * 8192),
            "ssm_scan 64x64": (scan(64, 64, 128, 8, d=True, n=n), 64 * 64 * 128),
            "ssm_scan 1x4096": (scan(1, 4096, 16, 1, d=True, n=n), 4096 * 16),
            "gated_delta_net 128": (delta(128, 16, 32, interleaved=True, n=n), 32 * 128 * 128),
            "gated_delta_net channels 128": (
                delta(128, 32, 32, by_channel=True, n=n),
                32 * 128 * 128,
            ),
        }
        slots = np.ones((n, 2)) if one else np.stack([1 + np.arange(n)] * 2, axis=1)
        for name, (make, size) in sizes.items():
            yield OpCase(
                f"{name}x{n}",
                lambda t, make=make, size=size, n=n, slots=slots: make(  # type: ignore[misc]
                    t, states(size, n + 1), slots[t]
                ),
                n_tokens=n,
                limit=1e-10,
                timed=True,
            )


def packed_cases() -> Iterator[OpCase]:
    for type in FORMATS:
        k = 512 if type.block_size > 32 else 160
        # columns become 8-bit integers, or BF16; 77 of them fill tiles of every width, and weights
        # are unpacked once for all
        limit = 1e-4 if type.is_quantized else 1e-5 if FORMATS[type].in_pairs(k) else 1e-10
        yield OpCase(
            f"mul_mat packed {type.name}",
            lambda t, type=type, k=k: ops.mul_mat(  # type: ignore[misc]
                packed_weights(type, 37, k), rows(t, k, 77)
            ),
            n_tokens=77,
            limit=limit,
        )
        yield OpCase(
            f"mul_mat_id packed {type.name}",
            lambda t, type=type, k=k: _experts(t, type, k, packed_weights),  # type: ignore[misc]
            axis=2,
            limit=limit,
        )
        yield OpCase(
            f"get_rows packed {type.name}",
            lambda t, type=type, k=k: ops.get_rows(  # type: ignore[misc]
                packed_weights(type, 37, k), ids(np.array([36, 0, 5, 5, 17])[t])
            ),
            limit=1e-14,
        )
    for type in (*FLOATS, Q8_0, GGMLType.Q4_0):
        yield OpCase(
            f"mul_mat packed heads {type.name}",
            lambda t, type=type: _heads(t, type, 5, 37, 160, 77),  # type: ignore[misc]
            n_tokens=77,
            limit=1e-4 if type.is_quantized else 1e-5,
        )
    for n in (1, 128):
        yield OpCase(
            f"mul_mat packed heads Q8_0 16x512x128x{n}",
            lambda t, n=n: _heads(t, Q8_0, 16, 512, 128, n),  # type: ignore[misc]
            n_tokens=n,
            limit=1e-4,
            timed=True,
        )
    for type in (F16, GGMLType.Q4_0, GGMLType.MXFP4, Q8_0, GGMLType.Q4_K, GGMLType.Q6_K):
        for n in (1, 8, 128):
            yield OpCase(
                f"mul_mat packed {type.name} 2048x2048x{n}",
                lambda t, type=type, n=n: ops.mul_mat(  # type: ignore[misc]
                    packed_weights(type, 2048, 2048), rows(t, 2048, n)
                ),
                n_tokens=n,
                limit=1e-4,
                timed=True,
            )


def _heads(t: Tokens, type: GGMLType, n_head: int, n: int, k: int, n_tokens: int) -> Tensor:
    """Each head's matrix times its rows of tokens."""
    x = leaf(numbers(n_tokens, n_head, k)[t])
    return ops.mul_mat(packed_weights(type, n_head, n, k), ops.permute(x, (0, 2, 1, 3)))


def data_cases() -> Iterator[OpCase]:
    places = np.array([3, 9, 0, 11, 7])
    for type in WRITTEN:
        for index in (GGMLType.I32, GGMLType.I64):
            yield OpCase(
                f"set_rows {type.name} {index.name}",
                lambda t, type=type, index=index: ops.set_rows(  # type: ignore[misc]
                    leaf(np.zeros((12, 64)), type), rows(t, 64), ids(places[t], index)
                ),
                axis=None,
                limit=0,
            )
    many = np.random.default_rng(1).permutation(80)[:70]
    yield OpCase(
        "set_rows many",
        lambda _: ops.set_rows(leaf(np.zeros((80, 64)), Q8_0), leaf(normal(70, 64)), ids(many)),
        axis=None,
        limit=0,
    )
    for a in FLOATS:
        for b in WRITTEN:
            yield OpCase(
                f"cast {a.name} {b.name}",
                lambda t, a=a, b=b: ops.cast(rows(t, 96, type=a), b),  # type: ignore[misc]
                limit=0,
            )
    yield OpCase("cast I32 F32", lambda t: ops.cast(leaf(np.array([[7, -3]]), GGMLType.I32), F32),
                 axis=None, limit=0)  # fmt: skip
    yield OpCase("cast F32 I32", lambda t: ops.cast(rows(t, 33), GGMLType.I32), limit=0)
    yield OpCase(
        "cpy transposed",
        lambda t: ops.cpy(ops.transpose(rows(t, 24)), leaf(np.zeros((24, len(t))), F16)),
        axis=0,
        limit=0,
    )
    yield OpCase(
        "get_rows I32",
        lambda t: ops.get_rows(leaf(np.arange(60).reshape(12, 5), GGMLType.I32), ids(places[t])),
        limit=0,
    )
    for dim in range(3):
        yield OpCase(
            f"concat {dim}",
            lambda t, dim=dim: ops.concat(  # type: ignore[misc]
                leaf(numbers(2, 3, 8)), leaf(numbers(2, 3, 8, seed=3)), dim
            ),
            axis=None,
            limit=0,
        )


@cache
def op_cases() -> tuple[OpCase, ...]:
    """All cases; their names are distinct."""
    families = (
        unary_cases,
        glu_cases,
        binary_cases,
        row_cases,
        rope_cases,
        matrix_cases,
        lora_cases,
        recurrent_cases,
        packed_cases,
        data_cases,
        attention_cases,
    )
    cases = tuple(case for family in families for case in family())
    assert len({case.name for case in cases}) == len(cases), "two cases have one name"
    return cases
