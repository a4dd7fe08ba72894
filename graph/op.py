"""The ops of nodes, by ggml's names, and their parameters.

`ops/` has the builders with shape and type rules; the docstring of a builder says what its op
computes.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final, NamedTuple


class Op(IntEnum):
    """The computation of a node. NONE marks a leaf: an input, a weight or a constant."""

    NONE = 0
    # element by element
    ADD = auto()
    SUB = auto()
    MUL = auto()
    DIV = auto()
    SCALE = auto()
    SQR = auto()
    SQRT = auto()
    LOG = auto()
    CLAMP = auto()
    FILL = auto()
    UNARY = auto()
    GLU = auto()
    ADD_ID = auto()
    # along rows
    SUM_ROWS = auto()
    NORM = auto()
    RMS_NORM = auto()
    SOFT_MAX = auto()
    ROPE = auto()
    ARGSORT = auto()
    TOP_K = auto()
    DIAG_MASK_INF = auto()
    DIAG_MASK_ZERO = auto()
    # matrices and attention
    MUL_MAT = auto()
    MUL_MAT_ID = auto()
    FLASH_ATTN_EXT = auto()
    INDEX_SCORES = auto()  # this and the next three are not in ggml
    PAGE_CELLS = auto()
    LORA_A = auto()
    LORA_B = auto()
    # recurrences: see `WRITTEN_SOURCES`
    SSM_CONV = auto()
    SSM_SCAN = auto()
    GATED_DELTA_NET = auto()
    # moving data
    GET_ROWS = auto()
    SET_ROWS = auto()
    CONCAT = auto()
    REPEAT = auto()
    CPY = auto()
    CONT = auto()
    DUP = auto()
    # views: without data of their own, nothing to compute
    VIEW = auto()
    RESHAPE = auto()
    PERMUTE = auto()
    TRANSPOSE = auto()


VIEW_OPS = frozenset({Op.VIEW, Op.RESHAPE, Op.PERMUTE, Op.TRANSPOSE})

# ops that may overwrite a source of the same layout (ggml-alloc.c, ggml_op_can_inplace)
INPLACE_OPS = frozenset(
    {
        Op.FILL,
        Op.SCALE,
        Op.DIAG_MASK_ZERO,
        Op.DIAG_MASK_INF,
        Op.ADD,
        Op.ADD_ID,
        Op.SUB,
        Op.MUL,
        Op.DIV,
        Op.SQR,
        Op.SQRT,
        Op.LOG,
        Op.UNARY,
        Op.ROPE,
        Op.RMS_NORM,
        Op.CLAMP,
        Op.SOFT_MAX,
        Op.LORA_B,
    }
)

# the source that an op writes beside its result: the states of a recurrence. The next source has
# the slots of tokens: see `ops/recurrent.py`
WRITTEN_SOURCES: Final = {Op.SSM_CONV: 2, Op.SSM_SCAN: 5, Op.GATED_DELTA_NET: 5}


class UnaryOp(IntEnum):
    """The function of a UNARY node."""

    SILU = 0
    GELU = auto()
    GELU_QUICK = auto()
    GELU_ERF = auto()
    RELU = auto()
    SIGMOID = auto()
    TANH = auto()
    EXP = auto()
    NEG = auto()
    ABS = auto()
    SOFTPLUS = auto()
    XIELU = auto()


class GluOp(IntEnum):
    """The gate function of a GLU node."""

    REGLU = 0
    GEGLU = auto()
    SWIGLU = auto()
    GEGLU_ERF = auto()
    GEGLU_QUICK = auto()
    SWIGLU_OAI = auto()


class RopeMode(IntEnum):
    """The pairs of elements of a head that are rotated (ggml.h, GGML_ROPE_TYPE_*)."""

    NORMAL = 0  # neighbors: (0, 1), (2, 3), ...
    NEOX = 2  # halves: (0, n/2), (1, n/2 + 1), ...


class SortOrder(IntEnum):
    """The order of an ARGSORT."""

    ASC = 0
    DESC = 1


class ScaleParams(NamedTuple):
    """SCALE: y = x * scale + bias."""

    scale: float
    bias: float


class EpsParams(NamedTuple):
    """NORM and RMS_NORM: added to the variance or mean square."""

    eps: float


class ClampParams(NamedTuple):
    """CLAMP: y = min(max(x, low), high)."""

    low: float
    high: float


class FillParams(NamedTuple):
    """FILL: y = value."""

    value: float


class UnaryParams(NamedTuple):
    """UNARY: its function. XIELU has four numbers: see `ops.xielu`."""

    op: UnaryOp
    scalars: tuple[float, ...] = ()


class GluParams(NamedTuple):
    """GLU: its gate; with `swapped` the second half of a single source is the gate.

    Only SWIGLU_OAI uses `alpha` and `limit`; the defaults are gpt-oss's.
    """

    op: GluOp
    swapped: bool
    alpha: float = 1.702
    limit: float = 7.0


class RopeParams(NamedTuple):
    """ROPE: rotary position embedding, with YaRN's parameters (arXiv 2104.09864, 2309.00071)."""

    n_dims: int
    mode: RopeMode
    n_ctx_orig: int
    freq_base: float
    freq_scale: float
    ext_factor: float
    attn_factor: float
    beta_fast: float
    beta_slow: float


class SoftMaxParams(NamedTuple):
    """SOFT_MAX: y = softmax(x * scale + slope(head) * mask); `max_bias` > 0 turns ALiBi on."""

    scale: float
    max_bias: float


class AttnParams(NamedTuple):
    """FLASH_ATTN_EXT: as SOFT_MAX; `softcap` > 0 limits scores to softcap * tanh(s / softcap).

    If `n_swa` > 0, no token attends to more positions. It determines sizes only, not results.
    """

    scale: float
    max_bias: float
    softcap: float
    page_size: int
    n_swa: int = 0


class IndexParams(NamedTuple):
    """INDEX_SCORES: cells in a page; the number of positions that a token attends to."""

    page_size: int
    top_k: int


class PageParams(NamedTuple):
    """PAGE_CELLS: cells in a page."""

    page_size: int


class DeltaParams(NamedTuple):
    """GATED_DELTA_NET: value head h has key head h % n_k if `interleaved`, else h * n_k // n_v."""

    interleaved: bool


class SortParams(NamedTuple):
    """ARGSORT: its order."""

    order: SortOrder


class ConcatParams(NamedTuple):
    """CONCAT: the dimension along which the sources are joined."""

    dim: int


class DiagMaskParams(NamedTuple):
    """DIAG_MASK_*: element i of row j is masked where i > n_past + j."""

    n_past: int


OpParams = (
    ScaleParams
    | EpsParams
    | ClampParams
    | FillParams
    | UnaryParams
    | GluParams
    | RopeParams
    | SoftMaxParams
    | AttnParams
    | IndexParams
    | PageParams
    | DeltaParams
    | SortParams
    | ConcatParams
    | DiagMaskParams
    | None
)
