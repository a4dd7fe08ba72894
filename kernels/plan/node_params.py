"""Parameters of kernels that are the same on every backend, from a node's op and layout.

All backends take them from here, so that all compute the same. Knows no kernels.
Tested through the ops' tests of each backend.
"""

from __future__ import annotations

import math
from typing import Final

from ...graph.op import (
    ClampParams,
    DiagMaskParams,
    EpsParams,
    FillParams,
    GluParams,
    Op,
    RopeParams,
    ScaleParams,
    SortOrder,
    SortParams,
    UnaryParams,
)
from ...graph.tensor import Tensor, params_of


def has_whole_rows(node: Tensor) -> bool:
    """True if no row of the node or its sources has gaps."""
    return all(t.has_contiguous_rows for t in (node, *node.src))


def has_whole_qkv(attention: Tensor) -> bool:
    """True if no row of the queries, keys and values has gaps."""
    return all(t.has_contiguous_rows for t in attention.src[:3])


def run_length(t: Tensor) -> int:
    """The number of elements at equal distances: all elements if there are no gaps, else a row."""
    # where rows have one element, is_contiguous does not look at nb[0]
    return t.n_elements if t.is_contiguous and t.nb[0] == t.type.type_size else t.ne[0]


def is_flat(node: Tensor, *operands: Tensor) -> bool:
    """True if all have the node's shape and no gaps, so that rows do not matter."""
    # where rows have one element, is_contiguous does not look at nb[0]
    return all(
        t.is_contiguous and t.ne == node.ne and t.nb[0] == t.type.type_size
        for t in (node, *operands)
    )


def scalars_of(node: Tensor) -> tuple[float, ...]:
    """The parameters of an op of one operand: a factor and a bias, two limits, or a value; those of
    a UNARY's function."""
    match node.params:
        case ScaleParams(scale, bias):
            return scale, bias or -0.0  # adding -0.0 changes nothing, 0.0 would turn -0.0 into 0.0
        case ClampParams(low, high):
            return low, high
        case FillParams(value):
            return (value,)
        case UnaryParams(_, scalars):
            return scalars
        case _:
            return ()


def eps_of(norm: Tensor) -> float:
    """The number that a NORM or RMS_NORM adds to the variance or mean square."""
    return params_of(norm, EpsParams).eps


def diag_mask_of(node: Tensor) -> tuple[int, float]:
    """A DIAG_MASK's number of past positions, and the value that masks the others."""
    value = -math.inf if node.op is Op.DIAG_MASK_INF else 0.0
    return params_of(node, DiagMaskParams).n_past, value


def is_descending(node: Tensor) -> bool:
    """True if an ARGSORT puts the largest first."""
    return params_of(node, SortParams).order is SortOrder.DESC


def glu_operands(node: Tensor) -> tuple[int, tuple[int, int]]:
    """The places of a GLU's operands: the tensor of the second operand (that of the first is 1),
    and the offset in bytes of each operand in its rows."""
    if len(node.src) == 2:
        return 2, (0, 0)
    half = node.ne[0] * node.src[0].nb[0]
    return 1, (half, 0) if params_of(node, GluParams).swapped else (0, half)


def glu_scalars(node: Tensor) -> tuple[float, float]:
    """The alpha and limit of a GLU. Only SWIGLU_OAI uses them."""
    p = params_of(node, GluParams)
    return p.alpha, p.limit


# --- rope ---


def rope_params(node: Tensor) -> tuple[int | float, ...]:
    """The parameters of a ROPE's kernels.

    In order: the number of rotated elements; 1 if pairs have factors; the ratio of the frequencies
    of a pair and the pair before it; YaRN's frequency scale, extrapolation factor, LOW and HIGH;
    the factor of cosines and sines.
    """
    p = params_of(node, RopeParams)
    low, high = _yarn_range(p)
    magnitude = p.attn_factor
    if p.ext_factor != 0:
        magnitude *= 1 - 0.1 * math.log(p.freq_scale)
    ratio = float(p.freq_base ** (-2 / p.n_dims))
    return (
        *(p.n_dims, len(node.src) > 2),
        *(ratio, p.freq_scale, p.ext_factor, low, high, magnitude),
    )


def _yarn_range(p: RopeParams) -> tuple[float, float]:
    """YaRN's LOW and HIGH, as in ggml's rope_yarn_corr_dims (arXiv 2309.00071)."""
    if p.ext_factor == 0:
        return 0.0, 0.0

    def pair_that_turns(n_rot: float) -> float:  # within n_ctx_orig positions
        turns = p.n_ctx_orig / (n_rot * 2 * math.pi)
        return p.n_dims * math.log(turns) / (2 * math.log(p.freq_base))

    low, high = math.floor(pair_that_turns(p.beta_fast)), math.ceil(pair_that_turns(p.beta_slow))
    return float(max(0, low)), float(min(p.n_dims - 1, high))


# --- recurrences ---

# Columns of a block of a state that is a matrix. A block's rows follow each other, then comes the
# next block; the last one may be narrower. So a processor loads a block from consecutive lines,
# and keeps it in its first cache for all tokens.
STATE_COLUMNS: Final = 32


def state_matrix(node: Tensor) -> tuple[int, int]:
    """The rows and columns of the matrices in a state of an SSM_SCAN or GATED_DELTA_NET.

    There is one for each head. The heads of Mamba 1 have one element: all are one matrix.
    """
    if node.op is Op.SSM_SCAN:
        n_columns = node.ne[0] if has_head_decay(node) else node.ne[1]
        return node.src[3].ne[0], n_columns
    return node.ne[0], node.ne[0]


def has_head_decay(scan: Tensor) -> bool:
    """True if an SSM_SCAN has one decay for each head, as Mamba 2; False for Mamba 1."""
    return scan.src[2].ne[0] == 1


def has_channel_decay(delta: Tensor) -> bool:
    """True if a GATED_DELTA_NET has a decay for each element of a key, not one for each head."""
    return delta.src[3].ne == delta.ne
