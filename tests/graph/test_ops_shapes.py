"""Every op builder: its result for good arguments.

Each builder needs a row in RIGHT; a test checks this. `op_calls.py` describes the tensors in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from op_calls import (
    BIASES,
    CELLS,
    CONV,
    DELTA,
    EXPERTS,
    FLASH,
    INDEX,
    LORA,
    MAMBA_1,
    ROPE,
    SCAN,
    SCATTER,
    Call,
    tensor,
)

from lamella.graph import GGMLType, GluOp, RopeMode, SortOrder, Tensor, UnaryOp, ops
from lamella.graph.op import (
    AttnParams,
    ClampParams,
    ConcatParams,
    DeltaParams,
    DiagMaskParams,
    EpsParams,
    FillParams,
    GluParams,
    IndexParams,
    OpParams,
    PageParams,
    RopeParams,
    ScaleParams,
    SoftMaxParams,
    SortParams,
    UnaryParams,
)
from lamella.graph.tensor import Shape, contiguous_strides

F16, F32, I32, I64 = GGMLType.F16, GGMLType.F32, GGMLType.I32, GGMLType.I64
Q4_0, Q8_0 = GGMLType.Q4_0, GGMLType.Q8_0


@dataclass(frozen=True, slots=True)
class Right:
    """A call and its expected result. `src`: sources by name, None: the arguments in order."""

    call: Call
    result: str
    params: OpParams = None
    src: str | None = None
    view_src: str = ""
    view_offs: int = 0
    nb: Shape | None = None  # None: contiguous


def right(
    result: str,
    name: str,
    *args: Any,
    params: OpParams = None,
    src: str | None = None,
    view_src: str = "",
    view_offs: int = 0,
    strides: Shape | None = None,
    **kwargs: Any,
) -> Right:
    return Right(Call(name, args, kwargs), result, params, src, view_src, view_offs, strides)


YARN: dict[str, Any] = {
    "n_dims": 32,
    "mode": RopeMode.NEOX,
    "n_ctx_orig": 4096,
    "freq_base": 5e5,
    "freq_scale": 0.25,
    "ext_factor": 1,
    "attn_factor": 1.5,
    "beta_fast": 16,
    "beta_slow": 2,
}
RIGHT = [
    right("ADD[64, 8] F32", "add", "a[64, 8]", "b[64]"),
    right("ADD[64, 0] F32", "add", "a[64, 0]", "b[64]"),
    right("ADD[8, 64] F32", "add", "turned a[8, 64]", "turned b[8, 64]"),
    right("ADD_ID[64, 2, 8] F16", "add_id", **BIASES),
    right("ADD_ID[64, 2, 8] F32", "add_id", **BIASES | {"a": "turned a[64, 2, 8]"}),
    right("LORA_A[16, 8] F32", "lora_a", **LORA),
    right("LORA_A[16, 8] F32", "lora_a", **LORA | {"x": "gaps x[64, 8]"}),
    right("LORA_B[32, 8] F32", "lora_b", "y[32, 8]", "b[32, 16]", "z[16, 8]"),
    right("SUB[64, 8] F32", "sub", "a[64, 8]", "b[1]"),
    right("MUL[4, 6, 2] F16", "mul", "a[4, 6, 2] F16", "b[2, 3, 2]"),
    right("DIV[64] F32", "div", "a[64]", "b[64] BF16"),
    right("SCALE[64, 8] F32", "scale", "a[64, 8]", 2, params=ScaleParams(2.0, 0.0)),
    right("SCALE[3] F16", "scale", "a[3] F16", 2, bias=-1, params=ScaleParams(2.0, -1.0)),
    right("SQR[2, 3, 4, 5] F32", "sqr", "a[2, 3, 4, 5]"),
    right("SQRT[2, 3] F32", "sqrt", "a[2, 3]"),
    right("LOG[2, 3] BF16", "log", "a[2, 3] BF16"),
    right("CLAMP[64] F32", "clamp", "a[64]", -1, 1, params=ClampParams(-1.0, 1.0)),
    right("CLAMP[64] F32", "clamp", "a[64]", 0, 0, params=ClampParams(0.0, 0.0)),
    right("FILL[64] F32", "fill", "a[64]", 7, params=FillParams(7.0)),
    right(
        "UNARY[8, 4] F32", "unary", "gaps a[8, 4]", UnaryOp.TANH, params=UnaryParams(UnaryOp.TANH)
    ),
    right("UNARY[8] F32", "silu", "a[8]", params=UnaryParams(UnaryOp.SILU)),
    right("UNARY[8] F32", "gelu", "a[8]", params=UnaryParams(UnaryOp.GELU)),
    right("UNARY[8] F32", "gelu_erf", "a[8]", params=UnaryParams(UnaryOp.GELU_ERF)),
    right("UNARY[8] F32", "relu", "a[8]", params=UnaryParams(UnaryOp.RELU)),
    right(
        "UNARY[8] F32",
        "xielu",
        "a[8]",
        *(1, 2, 0.5, -1e-6),
        params=UnaryParams(UnaryOp.XIELU, (1.0, 2.0, 0.5, -1e-6)),
    ),
    right(
        "GLU[32, 8] F32",
        "glu",
        "a[64, 8]",
        None,
        GluOp.GEGLU_ERF,
        swapped=True,
        params=GluParams(GluOp.GEGLU_ERF, True),
    ),
    right(
        "GLU[8, 4] F32",
        "glu",
        "gaps a[8, 4]",
        "b[8, 4]",
        GluOp.GEGLU_QUICK,
        params=GluParams(GluOp.GEGLU_QUICK, False),
    ),
    right("GLU[6, 8] F32", "swiglu", "a[6, 8]", "b[6, 8]", params=GluParams(GluOp.SWIGLU, False)),
    right("GLU[32] F16", "geglu", "a[64] F16", params=GluParams(GluOp.GEGLU, False)),
    right("GLU[32, 2, 3] F32", "reglu", "a[64, 2, 3]", params=GluParams(GluOp.REGLU, False)),
    right(
        "GLU[32, 2] F32",
        "swiglu_oai",
        "a[64, 2]",
        limit=3,
        params=GluParams(GluOp.SWIGLU_OAI, False, 1.702, 3.0),
    ),
    right("NORM[64, 8] F32", "norm", "a[64, 8]", 1e-5, params=EpsParams(1e-5)),
    right("RMS_NORM[64, 8] F32", "rms_norm", "gaps a[64, 8]", 0, params=EpsParams(0.0)),
    right("SOFT_MAX[64, 8, 4] F32", "soft_max", "a[64, 8, 4]", params=SoftMaxParams(1.0, 0.0)),
    right(
        "SOFT_MAX[64, 8, 4, 2] F32",
        "soft_max",
        "a[64, 8, 4, 2]",
        "mask[64, 32, 2] F16",
        0.5,
        8,
        params=SoftMaxParams(0.5, 8.0),
    ),
    right(
        "SOFT_MAX[64, 8] F32",
        "soft_max",
        "a[64, 8]",
        "mask[64, 8]",
        params=SoftMaxParams(1.0, 0.0),
    ),
    right(
        "ROPE[64, 4, 8] F32",
        "rope",
        **ROPE,
        params=RopeParams(64, RopeMode.NORMAL, 0, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0),
    ),
    right(
        "ROPE[64, 4, 8, 2] F16",
        "rope",
        "a[64, 4, 8, 2] F16",
        "pos[8] I32",
        "ff[16]",
        **YARN,
        params=RopeParams(32, RopeMode.NEOX, 4096, 5e5, 0.25, 1.0, 1.5, 16.0, 2.0),
    ),
    right("ARGSORT[64, 8] I32", "argsort", "a[64, 8]", params=SortParams(SortOrder.ASC)),
    right(
        "VIEW[5, 8] I32",
        "argsort_top_k",
        "a[64, 8]",
        5,
        src="ARGSORT",
        view_src="ARGSORT",
        strides=(4, 256, 2048, 2048),
    ),
    right(
        "VIEW[1] I32",
        "argsort_top_k",
        "a[3]",
        1,
        src="ARGSORT",
        view_src="ARGSORT",
        strides=(4, 12, 12, 12),
    ),
    right("VIEW[3] I32", "argsort_top_k", "a[3]", 3, src="ARGSORT", view_src="ARGSORT"),
    right("TOP_K[5, 8] I32", "top_k", "a[64, 8]", 5),
    right("TOP_K[5, 8] I32", "top_k", "a[65, 8]", 5, mask="mask[3, 8] I32"),
    right("TOP_K[64, 8, 2, 3] I32", "top_k", "turned a[64, 8, 2, 3]", 64),
    right("SUM_ROWS[1, 8, 2] F32", "sum_rows", "a[64, 8, 2]"),
    right("DIAG_MASK_INF[8, 4] F32", "diag_mask_inf", "a[8, 4]", 3, params=DiagMaskParams(3)),
    right("DIAG_MASK_ZERO[8, 4] F32", "diag_mask_zero", "a[8, 4]", 0, params=DiagMaskParams(0)),
    right("MUL_MAT[16, 8] F32", "mul_mat", "a[64, 16] Q4_0", "b[64, 8]"),
    right("MUL_MAT[16, 8, 4, 3] F32", "mul_mat", "a[64, 16, 2] F16", "turned b[64, 8, 4, 3] F16"),
    right("MUL_MAT_ID[16, 2, 8] F32", "mul_mat_id", **EXPERTS),
    right("MUL_MAT_ID[16, 2, 8] F32", "mul_mat_id", **EXPERTS | {"b": "b[64, 1, 8]"}),
    right("MUL_MAT_ID[16, 6, 8] F32", "mul_mat_id", **EXPERTS | {"ids": "ids[6, 8] I32"}),
    right("MUL_MAT_ID[16, 3, 8] F32", "mul_mat_id", "a[64, 16, 4]", "b[64, 3, 8]", "ids[3, 8] I32"),
    right(
        "FLASH_ATTN_EXT[32, 8, 5] F32",
        "flash_attn_ext",
        **FLASH,
        params=AttnParams(0.125, 0.0, 0.0, 32),
    ),
    right(
        "FLASH_ATTN_EXT[32, 8, 5] F32",
        "flash_attn_ext",
        **FLASH,
        max_bias=8,
        softcap=30,
        sinks="sinks[8]",
        n_swa=16,
        params=AttnParams(0.125, 8.0, 30.0, 32, 16),
    ),
    right(
        "FLASH_ATTN_EXT[1, 1, 5] F32",  # every size that can be 1 is 1
        "flash_attn_ext",
        **FLASH | {"q": "q[1, 1, 5]", "k": "k[1, 3]", "v": "v[1, 3]", "page_size": 1},
        params=AttnParams(0.125, 0.0, 0.0, 1),
    ),
    right("INDEX_SCORES[96, 5] F32", "index_scores", **INDEX, params=IndexParams(32, 4)),
    right("PAGE_CELLS[4, 5] I32", "page_cells", **CELLS, params=PageParams(32)),
    right("SSM_CONV[64, 8] F32", "ssm_conv", **CONV),
    right("SSM_CONV[64, 8] F32", "ssm_conv", **CONV | {"x": "gaps x[64, 8]"}, bias="bias[64]"),
    right("SSM_SCAN[16, 6, 8] F32", "ssm_scan", **SCAN),
    right(
        "SSM_SCAN[1, 6, 8] F32",
        "ssm_scan",
        **SCAN | MAMBA_1,
        d="d[6]",
    ),
    right("GATED_DELTA_NET[16, 6, 8] F32", "gated_delta_net", **DELTA, params=DeltaParams(True)),
    right(
        "GATED_DELTA_NET[16, 6, 8] F32",
        "gated_delta_net",
        **DELTA | {"g": "g[16, 6, 8]"},
        params=DeltaParams(True),
    ),
    right("GET_ROWS[64, 7] F32", "get_rows", "a[64, 100] Q8_0", "ids[7] I32"),
    right("GET_ROWS[4, 7, 3, 2] I32", "get_rows", "a[4, 10, 3, 2] I32", "ids[7, 3, 2] I32"),
    right(
        "SET_ROWS[64, 100] Q8_0",
        "set_rows",
        "a[64, 100] Q8_0",
        "b[64, 7]",
        "ids[7] I64",
        src="b ids a",
        view_src="a",
    ),
    right(
        "SET_ROWS[4, 9] F16",
        "set_rows",
        "gaps a[4, 9] F16",
        "b[4, 7]",
        "ids[7] I32",
        src="b ids a",
        view_src="wide",
        strides=(2, 16, 144, 144),
    ),
    right("SET_ROWS[4, 9, 4, 6] F32", "set_rows", **SCATTER, src="b ids a", view_src="a"),
    right(
        "CONCAT[64, 11] I32", "concat", "a[64, 8] I32", "b[64, 3] I32", 1, params=ConcatParams(1)
    ),
    right(
        "CONCAT[2, 3, 4, 2] F32", "concat", "a[2, 3, 4]", "b[2, 3, 4]", 3, params=ConcatParams(3)
    ),
    right("REPEAT[16, 3, 2] F32", "repeat", "a[8, 1, 2]", (16, 3, 2)),
    right("CONT[8, 3] F32", "cont", "turned a[8, 3]"),
    right("CONT[24] F32", "cont", "turned a[8, 3]", (24,)),
    right("DUP[64, 2] Q4_0", "dup", "gaps a[64, 2] Q4_0"),
    right("CPY[32, 4] F16", "cpy", "a[64, 2]", "b[32, 4] F16", view_src="b"),
    right(
        "CPY[8, 4] F32",
        "cpy",
        "a[8, 4]",
        "gaps b[8, 4]",
        view_src="wide",
        strides=(4, 64, 256, 256),
    ),
    right("CPY[64] Q4_0", "cpy", "a[32, 2] Q4_0", "b[64] Q4_0", view_src="b"),
    right("CPY[64] I64", "cpy", "a[64] I64", "b[64] I64", view_src="b"),
    right("CPY[64, 2] Q8_0", "cast", "a[64, 2] F16", Q8_0),
    right("CPY[64, 2] F32", "cast", "turned a[64, 2]", F32),
    right("CPY[64] F32", "cast", "a[64] Q4_0", F32),
    right("CPY[64] F32", "cast", "a[64] I32", F32),
    right("CPY[64] I32", "cast", "a[64]", I32),
    right("VIEW[4, 2] F32", "view", "a[8]", (4, 2), (4, 0), view_src="a", strides=(4, 0, 0, 0)),
    right("VIEW[64, 2] F32", "view", "a[64, 8]", (64, 2), view_src="a"),
    right(
        "VIEW[16, 4] F32",
        "view",
        "a[64, 8]",
        (16, 4),
        (4, 256),
        offset=64,
        view_src="a",
        view_offs=64,
        strides=(4, 256, 1024, 1024),
    ),
    right(
        "VIEW[32, 2] Q4_0", "view", "a[64, 8] Q4_0", (32, 2), None, 36, view_src="a", view_offs=36
    ),
    right("RESHAPE[32, 4, 4] Q4_0", "reshape", "a[64, 8] Q4_0", (32, 4, 4), view_src="a"),
    right(
        "PERMUTE[5, 2, 3, 4] F32",
        "permute",
        "a[2, 3, 4, 5]",
        (1, 2, 3, 0),
        view_src="a",
        strides=(96, 4, 8, 24),
    ),
    right(
        "PERMUTE[64, 4, 3] Q4_0",
        "permute",
        "a[64, 3, 4] Q4_0",
        (0, 2, 1, 3),
        view_src="a",
        strides=(18, 108, 36, 432),
    ),
    right(
        "TRANSPOSE[8, 64, 2] F32",
        "transpose",
        "a[64, 8, 2]",
        view_src="a",
        strides=(256, 4, 2048, 4096),
    ),
]


def label(t: Tensor) -> str:
    return t.name or t.op.name


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.call.name)
def test_good_arguments(case: Right) -> None:
    given: list[Tensor] = []
    result = case.call.build(given)
    want = tensor(case.result)  # a result without a name shows its op as its name
    assert (result.op.name, result.ne, result.type) == (want.name, want.ne, want.type)
    assert result.nb == (case.nb or contiguous_strides(result.type, result.ne))
    assert result.params == case.params
    assert type(result.params) is type(case.params)
    src = " ".join(t.name for t in given) if case.src is None else case.src
    assert " ".join(label(t) for t in result.src) == src
    assert ("" if result.view_src is None else label(result.view_src)) == case.view_src
    assert result.view_offs == case.view_offs
    assert (result.name, result.flags, result.buffer) == ("", 0, None)


def test_argsort_top_k_sorts_downwards() -> None:
    a = Tensor(F32, (64, 8), name="a")
    order = ops.argsort_top_k(a, 5).src[0]
    assert (order.params, order.src) == (SortParams(SortOrder.DESC), [a])
    assert ops.argsort(a, SortOrder.DESC).params == SortParams(SortOrder.DESC)


def test_every_builder_is_in_the_table() -> None:
    assert {case.call.name for case in RIGHT} == set(ops.__all__)
