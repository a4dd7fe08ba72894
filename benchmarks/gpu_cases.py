"""The cases of the GPU benchmark: nodes and fused chains of models, with their costs.

Each copy of a case has its own weights and inputs, so that nothing is in the cache and no
preparation is shared. So the time of a product includes quantizing its columns, and that of
MUL_MAT_ID includes grouping tokens by expert. Knows no devices. Tested by
tests/observe/test_bench_cuda.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cuda.ops import quantized

Ints = npt.NDArray[np.int32]

F32, F16, I32, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.I32, GGMLType.Q8_0
Q4_0, Q4_K = GGMLType.Q4_0, GGMLType.Q4_K
PRODUCTS: Final = (*quantized.TYPES, F16, GGMLType.BF16, F32)
SHAPES_1B: Final = ((2048, 2048), (2048, 8192), (8192, 2048))  # (k, rows) of its matrices
SHAPES_8B: Final = ((4096, 4096), (4096, 14336), (14336, 4096))
N_EMBD, N_FF, N_VOCAB = 4096, 14336, 128_000  # of an 8b model
HEADS: Final = {"1b": (64, 32, 8), "8b": (128, 32, 8)}  # head_dim, n_head, n_head_kv
N_EXPERT, N_USED = 128, 8  # of a qwen3moe model
SHAPE_MOE: Final = (2048, 768)  # embedding, hidden rows of an expert
PAGE: Final = 32  # cells
N_CELLS: Final = 1024  # of the KV pool in set_rows cases


class Tensors(ABC):
    """Makes the leafs of cases."""

    @abstractmethod
    def tensor(self, type: GGMLType, *ne: int, key: Any, values: Ints | None = None) -> Tensor:
        """Return the leaf of a key, with `values` or random bytes.

        It is a weight unless the key ends with "x".
        """

    def weights(self, type: GGMLType, *ne: int, i: int) -> Tensor:
        """Return the i-th matrix of a shape."""
        return self.tensor(type, *ne, key=(type, ne, i))

    def own(
        self, type: GGMLType, *ne: int, i: int, what: str = "", values: Ints | None = None
    ) -> Tensor:
        """Return an input of the i-th copy of a case. `what` distinguishes inputs of one shape."""
        return self.tensor(type, *ne, key=(what, type, ne, i, "x"), values=values)

    def count(self, n: int, i: int, what: str, begin: int = 0, step: int = 1) -> Tensor:
        """Return n integers of the i-th copy, from `begin` on."""
        return self.own(I32, n, i=i, what=what, values=begin + step * np.arange(n, dtype=np.int32))


@dataclass(frozen=True)
class GpuCase:
    """A node or a chain to measure. `build(tensors, i)` makes its i-th copy.

    `n_bytes` counts its inputs and results, without intermediate data. `flops` counts its
    multiplications and additions. `rate` names the device's limit for them ("" for none).
    """

    name: str
    build: Callable[[Tensors, int], Tensor]
    n_bytes: int
    flops: int = 0
    rate: str = ""


def all_cases() -> Sequence[GpuCase]:
    families = (product_cases, gate_up_cases, expert_cases, attention_cases, cache_cases, row_cases)
    return [case for family in families for case in family()]


def matrix_bytes(type: GGMLType, k: int, m: int) -> int:
    return m * type.row_size(k)


def _rate(type: GGMLType) -> str:
    if type is F32:
        return ""  # no tensor cores
    return "s8_tops" if type.is_quantized else "f16_tflops"


# --- products ---


def product_cases() -> Iterator[GpuCase]:
    for type in PRODUCTS:
        for k, m in (*SHAPES_1B, *SHAPES_8B) if type in (Q4_0, F16) else SHAPES_8B[1:2]:
            for n in (1, 2, 4, 8, *((16, 32) if type is Q4_0 else ()), 64, 512, 4096):
                yield _product_case(type, k, m, n)
    for n in (1, 64, 512):
        yield _product_case(F32, SHAPE_MOE[0], N_EXPERT, n)  # the router of experts


def _product_case(type: GGMLType, k: int, m: int, n: int) -> GpuCase:
    return GpuCase(
        f"mul_mat {type.name} {k}x{m}x{n}",
        partial(_product, type, k, m, n),
        matrix_bytes(type, k, m) + 4 * n * (m + k),
        2 * m * k * n,
        _rate(type),
    )


def _product(type: GGMLType, k: int, m: int, n: int, t: Tensors, i: int) -> Tensor:
    return ops.mul_mat(t.weights(type, k, m, i=i), t.own(F32, k, n, i=i))


def gate_up_cases() -> Iterator[GpuCase]:
    k, m = N_EMBD, N_FF
    for type in (Q4_0, Q4_K):
        for n in (1, 2, 4, 8, 64, 512):
            yield GpuCase(
                f"gate+up+swiglu {type.name} {k}x{m}x{n}",
                partial(_gate_up, type, k, m, n),
                2 * matrix_bytes(type, k, m) + 4 * n * (m + k),
                4 * m * k * n,
                _rate(type),
            )


def _gate_up(type: GGMLType, k: int, m: int, n: int, t: Tensors, i: int) -> Tensor:
    x = t.own(F32, k, n, i=i)
    gate, up = (ops.mul_mat(t.weights(type, k, m, i=2 * i + j), x) for j in range(2))
    return ops.swiglu(gate, up)


# --- products of experts ---


def chosen_experts(n: int, i: int) -> Ints:
    """Return the experts of each token in the i-th copy.

    Consecutive copies use different experts for the first token, and all use equally many.
    """
    rng = np.random.default_rng(0)
    slots = rng.permuted(np.tile(np.arange(N_EXPERT, dtype=np.int32), (n, 1)), axis=1)[:, :N_USED]
    slots[0] = np.arange(0, N_EXPERT, N_EXPERT // N_USED)
    return (slots + i % (N_EXPERT // N_USED)) % N_EXPERT


def expert_cases() -> Iterator[GpuCase]:
    k, m = SHAPE_MOE
    for type in (Q4_0, Q4_K):
        for n in (1, 64, 512):
            n_read = np.unique(chosen_experts(n, 0)).size
            matrices = n_read * matrix_bytes(type, k, m)
            rows, results = 4 * k * n, 4 * m * N_USED * n
            flops, ids = 2 * k * m * N_USED * n, 4 * N_USED * n
            name, rate = f"mul_mat_id {type.name}", _rate(type)
            yield GpuCase(
                f"{name} {k}x{m}x{n}",
                partial(_experts, type, k, m, n, 1),
                matrices + rows + ids + results,
                flops,
                rate,
            )
            yield GpuCase(  # each expert of a token has its own column
                f"{name} {m}x{k}x{n}",
                partial(_experts, type, m, k, n, N_USED),
                n_read * matrix_bytes(type, m, k) + results + ids + 4 * k * N_USED * n,
                flops,
                rate,
            )
            yield GpuCase(
                f"gate+up+swiglu of experts {type.name} {k}x{m}x{n}",
                partial(_gate_up_of_experts, type, k, m, n),
                2 * matrices + rows + ids + results,
                2 * flops,
                rate,
            )


def _experts(type: GGMLType, k: int, m: int, n: int, n_x: int, t: Tensors, i: int) -> Tensor:
    x, ids = t.own(F32, k, n_x, n, i=i), _ids(n, t, i)
    return ops.mul_mat_id(t.weights(type, k, m, N_EXPERT, i=_stack(n, i)), x, ids)


def _gate_up_of_experts(type: GGMLType, k: int, m: int, n: int, t: Tensors, i: int) -> Tensor:
    x, ids, at = t.own(F32, k, 1, n, i=i), _ids(n, t, i), 2 * _stack(n, i)
    gate, up = (ops.mul_mat_id(t.weights(type, k, m, N_EXPERT, i=at + j), x, ids) for j in range(2))
    return ops.swiglu(gate, up)


def _ids(n: int, t: Tensors, i: int) -> Tensor:
    return t.own(I32, N_USED, n, i=i, what="experts", values=chosen_experts(n, i))


def _stack(n: int, i: int) -> int:
    """Return the index of the experts' weights of the i-th copy.

    With one token, several copies use different experts of the same weights.
    """
    return i // (N_EXPERT // N_USED) if n == 1 else i


# --- attention ---


def attention_cases() -> Iterator[GpuCase]:
    for name, (head_dim, n_head, n_kv) in HEADS.items():
        for type in (F16, Q8_0):
            row = type.row_size(n_kv * head_dim)
            for n_tokens, n_seqs, depth in ((1, 1, 4096), (64, 64, 1024), (512, 1, 4096)):
                yield GpuCase(
                    f"attention {name} {type.name} {n_tokens} tokens, {n_seqs} x {depth}",
                    partial(_attention, type, HEADS[name], n_tokens, n_seqs, depth),
                    2 * row * n_seqs * depth + 8 * head_dim * n_head * n_tokens,
                    4 * head_dim * n_head * sum(_positions(n_tokens, n_seqs, depth)),
                    "f16_tflops",
                )


def _attention(
    type: GGMLType,
    heads: tuple[int, int, int],
    n_tokens: int,
    n_seqs: int,
    depth: int,
    t: Tensors,
    i: int,
) -> Tensor:
    head_dim, n_head, n_kv = heads
    n_pages = depth // PAGE + 1
    ids = np.arange(n_seqs * n_pages, dtype=np.int32)
    table = np.concatenate([ids, np.zeros(n_pages, np.int32)])  # with a row for padding tokens
    seq = np.arange(n_tokens, dtype=np.int32) % n_seqs
    pos = np.array(_positions(n_tokens, n_seqs, depth), np.int32) - 1
    k, v = (t.weights(type, head_dim * n_kv, n_seqs * n_pages * PAGE, i=2 * i + j) for j in (0, 1))
    return ops.flash_attn_ext(
        t.own(F32, head_dim, n_head, n_tokens, i=i),
        k,
        v,
        t.own(I32, n_pages, n_seqs + 1, i=i, what="pages", values=table),
        t.own(I32, n_tokens, i=i, what="seq", values=seq),
        t.own(I32, n_tokens, i=i, what="pos", values=pos),
        t.own(I32, n_tokens, i=i, what="begin", values=0 * pos),
        t.own(I32, n_tokens, i=i, what="end", values=pos + 1),
        page_size=PAGE,
        scale=head_dim**-0.5,
    )


def _positions(n_tokens: int, n_seqs: int, depth: int) -> list[int]:
    """Return the number of positions that each token attends to."""
    if n_seqs == n_tokens:
        return [depth] * n_tokens
    return [depth - n_tokens + i + 1 for i in range(n_tokens)]


# --- rope and the KV pool ---


def cache_cases() -> Iterator[GpuCase]:
    head_dim, n_head, n_kv = HEADS["8b"]
    row = n_kv * head_dim
    for n in (1, 64, 512):
        yield GpuCase(
            f"rope {head_dim}x{n_head}x{n}",
            partial(_rope, head_dim, n_head, n),
            8 * head_dim * n_head * n + 4 * n,
        )
        for type in (F16, Q8_0):
            moved = (4 * row + type.row_size(row) + 4) * n  # rows, cells, their numbers
            yield GpuCase(
                f"set_rows {type.name} {row}x{n}",
                partial(_set_rows, type, row, n),
                moved,
            )
            yield GpuCase(
                f"rope+set_rows {type.name} {head_dim}x{n_kv}x{n}",
                partial(_rope_set_rows, type, head_dim, n_kv, n),
                moved + 4 * n,
            )


def _rope(head_dim: int, n_head: int, n: int, t: Tensors, i: int) -> Tensor:
    x, pos = t.own(F32, head_dim, n_head, n, i=i), t.count(n, i, "pos", begin=3000)
    return ops.rope(x, pos, n_dims=head_dim, freq_base=5e5)


def _set_rows(type: GGMLType, row: int, n: int, t: Tensors, i: int) -> Tensor:
    return _write(type, t.own(F32, row, n, i=i, what="rows"), t, i)


def _rope_set_rows(
    type: GGMLType, head_dim: int, n_head: int, n: int, t: Tensors, i: int
) -> Tensor:
    k = _rope(head_dim, n_head, n, t, i)
    return _write(type, ops.reshape(k, (head_dim * n_head, n)), t, i)


def _write(type: GGMLType, rows: Tensor, t: Tensors, i: int) -> Tensor:
    row, n = rows.ne[:2]
    cells = t.count(n, i, "cells", step=N_CELLS // n)
    return ops.set_rows(t.own(type, row, N_CELLS, i=i, what="cache"), rows, cells)


# --- rows ---


def row_cases() -> Iterator[GpuCase]:
    k, ff = N_EMBD, N_FF
    for n in (1, 64, 512):
        yield GpuCase(f"rms_norm {k}x{n}", partial(_rms_norm, k, n), 8 * k * n)
        yield GpuCase(f"rms_norm+mul {k}x{n}", partial(_norm_mul, k, n), 8 * k * n + 4 * k)
        yield GpuCase(f"add+rms_norm+mul {k}x{n}", partial(_add_norm_mul, k, n), 16 * k * n + 4 * k)
        yield GpuCase(f"swiglu {ff}x{n}", partial(_swiglu, ff, n), 12 * ff * n)
        yield GpuCase(f"soft_max {N_EXPERT}x{n}", partial(_soft_max, n), 8 * N_EXPERT * n)
        yield GpuCase(f"get_rows F32 {k}x{n}", partial(_get_rows, k, n), (8 * k + 4) * n)
    for n in (1, 64):
        for n_top in (1, 64):
            yield GpuCase(
                f"top_k {n_top} of {N_VOCAB}x{n}",
                partial(_top_k, n_top, n),
                4 * (N_VOCAB + n_top) * n,
            )


def _rms_norm(k: int, n: int, t: Tensors, i: int) -> Tensor:
    return ops.rms_norm(t.own(F32, k, n, i=i), 1e-5)


def _norm_mul(k: int, n: int, t: Tensors, i: int) -> Tensor:
    return ops.mul(_rms_norm(k, n, t, i), t.weights(F32, k, i=i))


def _add_norm_mul(k: int, n: int, t: Tensors, i: int) -> Tensor:
    # the sum is an output as well, as the next layer adds to it
    total = ops.add(*_two(k, n, t, i)).set_output()
    return ops.mul(ops.rms_norm(total, 1e-5), t.weights(F32, k, i=i))


def _swiglu(k: int, n: int, t: Tensors, i: int) -> Tensor:
    return ops.swiglu(*_two(k, n, t, i))


def _two(k: int, n: int, t: Tensors, i: int) -> tuple[Tensor, Tensor]:
    return t.own(F32, k, n, i=i, what="a"), t.own(F32, k, n, i=i, what="b")


def _soft_max(n: int, t: Tensors, i: int) -> Tensor:
    return ops.soft_max(t.own(F32, N_EXPERT, n, i=i))


def _get_rows(k: int, n: int, t: Tensors, i: int) -> Tensor:
    return ops.get_rows(t.own(F32, k, n, i=i), t.count(n, i, "out_ids"))


def _top_k(n_top: int, n: int, t: Tensors, i: int) -> Tensor:
    return ops.top_k(t.own(F32, N_VOCAB, n, i=i), n_top)
