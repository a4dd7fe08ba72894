"""Rotary position embedding (src/rope.cu): ROPE, and of keys straight into the rows of a cache.

Angles are computed in float64, from the position and the pair alone: an element's bits do not
depend on how heads are shared out. Tested by tests/kernels/test_cuda_rope.py and
tests/kernels/test_cuda_fusion.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import gcd
from typing import Final

from ....graph.op import Op, RopeMode, RopeParams
from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...plan.fusion import RopeSetRows
from ..params import Param
from ..table import Call, Kernel, Source, fuses, implements
from .data import is_writable
from .elementwise import BLOCK, is_countable

ROPE: Final = Source.of("rope.cu")
MANY_PAIRS: Final = 2**17  # from which on threads turn several heads, to compute fewer angles
HEADS: Final = 8  # that they turn then
FEW, MANY = 512, 4096  # elements of a block that writes a cache, for few tokens and for many
MANY_TOKENS: Final = 64
MAX_SHARED: Final = 48 * 1024  # bytes


@implements(Op.ROPE, supports=is_countable)
def rope(node: Tensor) -> Sequence[Call]:
    n_pairs, (_, n_head, n_tokens, n_batch) = (node.ne[0] + 1) // 2, node.ne
    n_heads = 1 if n_pairs * node.n_rows < MANY_PAIRS else min(HEADS, n_head)
    n_threads = n_pairs * -(-n_head // n_heads) * n_tokens * n_batch
    params = (*_params(node), int(node.type), n_heads)
    return [Call(Kernel(ROPE, "rope"), (-(-n_threads // BLOCK), 1, 1), BLOCK, params)]


@fuses(RopeSetRows)
def rope_set_rows(chain: RopeSetRows) -> Sequence[Call] | None:
    """The cache alone."""
    rope, cache = chain.rope, chain.set_rows
    if not is_writable(cache.type) or not is_countable(rope) or rope.type is not GGMLType.F32:
        return None
    (x, pos, *factors), ids, type = rope.src, cache.src[1], cache.type
    head_dim, n_head, n_tokens, _ = rope.ne
    unit = type.block_size // gcd(type.block_size, head_dim)  # heads that make whole blocks
    if n_head % unit:
        return None
    n_wanted = (FEW if n_tokens < MANY_TOKENS else MANY) // head_dim
    n_heads = min(max(n_wanted // unit, 1) * unit, n_head)
    shared = 4 * n_heads * head_dim
    if shared > MAX_SHARED:
        return None
    params = (*_params(rope), int(type), n_heads, ids.type.type_size)
    tensors = (cache, x, pos, *(factors or [pos]), ids)
    grid = (n_tokens, -(-n_head // n_heads), 1)
    return [Call(Kernel(ROPE, "rope_set_rows"), grid, BLOCK, params, shared, tensors=tensors)]


def _params(node: Tensor) -> tuple[Param, ...]:
    """The parameters of both kernels."""
    p = node.params
    assert isinstance(p, RopeParams), f"{node!r}: {p}"
    low, high = _yarn_range(p)
    magnitude = p.attn_factor
    if p.ext_factor != 0:
        magnitude *= 1 - 0.1 * math.log(p.freq_scale)
    ratio = float(p.freq_base ** (-2 / p.n_dims))
    return (
        *(p.n_dims, len(node.src) > 2),
        *(ratio, p.freq_scale, p.ext_factor, low, high, magnitude),
        p.mode is RopeMode.NEOX,
    )


def _yarn_range(p: RopeParams) -> tuple[float, float]:
    """LOW and HIGH, as in ggml's rope_yarn_corr_dims (arXiv 2309.00071)."""
    if p.ext_factor == 0:
        return 0.0, 0.0

    def pair_that_turns(n_rot: float) -> float:  # within n_ctx_orig positions
        turns = p.n_ctx_orig / (n_rot * 2 * math.pi)
        return p.n_dims * math.log(turns) / (2 * math.log(p.freq_base))

    low, high = math.floor(pair_that_turns(p.beta_fast)), math.ceil(pair_that_turns(p.beta_slow))
    return float(max(0, low)), float(min(p.n_dims - 1, high))
