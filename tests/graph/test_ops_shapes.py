"""Every op builder: its result for good arguments, and its error for bad ones.

There are two tables, RIGHT and WRONG. A builder needs a row in both. Each of its rules (a call of
`require…`) needs a row of WRONG that breaks it. Tests check this. A string in a row is a tensor,
written as its repr without F32: `b[64, 2] F16`. The prefix `turned` makes rows with gaps inside,
`gaps` makes whole rows with a gap after each.
"""

from __future__ import annotations

import ast
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lamella.base.errors import GraphError
from lamella.graph import GGMLType, GluOp, RopeMode, SortOrder, Tensor, UnaryOp, ops
from lamella.graph.op import (
    AttnParams,
    ClampParams,
    ConcatParams,
    DiagMaskParams,
    EpsParams,
    FillParams,
    GluParams,
    OpParams,
    RopeParams,
    ScaleParams,
    SoftMaxParams,
    SortParams,
    UnaryParams,
)
from lamella.graph.tensor import Shape, contiguous_strides

F16, F32, I32, I64 = GGMLType.F16, GGMLType.F32, GGMLType.I32, GGMLType.I64
Q4_0, Q8_0 = GGMLType.Q4_0, GGMLType.Q8_0

WITHOUT_RULES = {"dup"}

TENSOR = re.compile(r"(turned |gaps |)(\w+)\[([\d, ]+)\] ?(\w*)")


def tensor(text: str) -> Tensor:
    match = TENSOR.fullmatch(text)
    assert match is not None, text
    layout, name, shape, type_name = match.groups()
    type = GGMLType[type_name or "F32"]
    ne = [int(n) for n in shape.split(",")]
    if layout == "turned ":
        return ops.transpose(Tensor(type, (ne[1], ne[0], *ne[2:]), name="upright")).named(name)
    if layout == "gaps ":
        wide = Tensor(type, (2 * ne[0], *ne[1:]), name="wide")
        return ops.view(wide, ne, nb=wide.nb).named(name)
    return Tensor(type, ne, name=name)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the builder `name`."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def build(self, given: list[Tensor]) -> Tensor:
        """Return the result. Append its arguments to `given`, even if the builder raises."""
        args = [self._argument(a, given) for a in self.args]
        kwargs = {key: self._argument(a, given) for key, a in self.kwargs.items()}
        result = getattr(ops, self.name)(*args, **kwargs)
        assert isinstance(result, Tensor)
        return result

    @staticmethod
    def _argument(a: Any, given: list[Tensor]) -> Any:
        if not isinstance(a, str):
            return a
        given.append(tensor(a))
        return given[-1]


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


@dataclass(frozen=True, slots=True)
class Wrong:
    """A call that breaks one rule. `shows`: the tensors in the message by name, None: all."""

    call: Call
    rule: str
    shows: str | None = None
    also: str = ""
    op: str = ""  # the op's name in the message, if it differs from the builder's


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


def wrong(
    rule: str,
    name: str,
    *args: Any,
    shows: str | None = None,
    also: str = "",
    by: str = "",
    **kwargs: Any,
) -> Wrong:
    return Wrong(Call(name, args, kwargs), rule, shows, also, by)


ROPE: dict[str, Any] = {"a": "a[64, 4, 8]", "pos": "pos[8] I32", "n_dims": 64}
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
# 5 tokens of 8 heads over 96 cells of 2 heads; the heads of v are half as wide as those of k
FLASH: dict[str, Any] = {
    "q": "q[64, 8, 5]",
    "k": "k[128, 96] F16",
    "v": "v[64, 96] Q8_0",
    "pages": "pages[3, 2] I32",
    "seq": "seq[5] I32",
    "pos": "pos[5] I32",
    "page_size": 32,
    "scale": 0.125,
}
EXPERTS: dict[str, Any] = {"a": "a[64, 16, 4]", "b": "b[64, 2, 8]", "ids": "ids[2, 8] I32"}
BIASES: dict[str, Any] = {"a": "a[64, 2, 8] F16", "b": "b[64, 4]", "ids": "ids[2, 8] I32"}
SCATTER: dict[str, Any] = {"a": "a[4, 9, 4, 6]", "b": "b[4, 7, 4, 6]", "ids": "ids[7, 2, 3] I32"}

RIGHT = [
    right("ADD[64, 8] F32", "add", "a[64, 8]", "b[64]"),
    right("ADD[64, 0] F32", "add", "a[64, 0]", "b[64]"),
    right("ADD[8, 64] F32", "add", "turned a[8, 64]", "turned b[8, 64]"),
    right("ADD_ID[64, 2, 8] F16", "add_id", **BIASES),
    right("ADD_ID[64, 2, 8] F32", "add_id", **BIASES | {"a": "turned a[64, 2, 8]"}),
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
    right("UNARY[8] F32", "relu", "a[8]", params=UnaryParams(UnaryOp.RELU)),
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
        params=AttnParams(0.125, 8.0, 30.0, 32),
    ),
    right(
        "FLASH_ATTN_EXT[1, 1, 5] F32",  # every size that can be 1 is 1
        "flash_attn_ext",
        **FLASH | {"q": "q[1, 1, 5]", "k": "k[1, 3]", "v": "v[1, 3]", "page_size": 1},
        params=AttnParams(0.125, 0.0, 0.0, 1),
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


FLOAT = "must be F32 or F16 or BF16, not "
POOL = "must be F32 or F16 or BF16 or Q8_0, not "
REPEAT = "the shape of a must be whole repetitions of b"
ROWS = "rows must be contiguous"
EQUAL = "shapes and types must be equal"
COUNT = "both shapes must have the same number of elements"
MASK = "the mask must have ne[0] of a, ne[1] of a or more, and divisors of a.ne[2:]"
POS = "pos must be a vector of a.ne[2] positions"
EVEN = "must be even and at most ne[0]"
MUL = "ne[0] must be equal, and a.ne[2:] must divide b.ne[2:]"
FLAT = "a and b must have at most three dimensions, ids two"
TOKENS = "ids.ne[1] must equal b.ne[2], and b.ne[1] must divide ids.ne[0]"
HEADS = "k.ne[0] must be q.ne[0] times a divisor of n_head"
GET = "a.ne[2:] must equal ids.ne[1:3]"
SET = "a and b must have equal dimensions except ne[1]"
IDS = "ids.ne[0] must equal b.ne[1], and ids.ne[1:3] must divide b.ne[2:]"
AXES = "must be a permutation of 0, 1, 2, 3"


def binary(name: str) -> list[Wrong]:
    return [
        wrong(REPEAT, name, "a[64, 8]", "b[48]"),
        wrong(REPEAT, name, "a[64, 8]", "b[64, 16]"),
        wrong("a " + FLOAT + "I32", name, "a[64, 8] I32", "b[64]", shows="a"),
        wrong("b " + FLOAT + "Q8_0", name, "a[64, 8]", "b[64] Q8_0", shows="b"),
    ]


def mapped(name: str, *args: Any, by: str = "") -> list[Wrong]:
    return [
        wrong("a " + FLOAT + "I32", name, "a[64, 8] I32", *args, by=by),
        wrong("a " + FLOAT + "Q4_0", name, "a[64, 8] Q4_0", *args, by=by),
    ]


def gated(name: str, *op: GluOp, by: str = "") -> list[Wrong]:
    return [
        *mapped(name, None, *op, by=by),
        wrong("ne[0] must be even", name, "a[7, 3]", None, *op, by=by),
        wrong(EQUAL, name, "a[64, 8]", "b[64, 4]", *op, by=by),
        wrong(EQUAL, name, "a[64, 8]", "b[64, 8] F16", *op, by=by),
        wrong(ROWS, name, "turned a[64, 8]", None, *op, by=by),
        wrong(ROWS, name, "a[64, 8]", "turned b[64, 8]", *op, shows="b", by=by),
    ]


def normed(name: str) -> list[Wrong]:
    return [
        wrong("a must be F32, not F16", name, "a[64, 8] F16", 0),
        wrong(ROWS, name, "turned a[64, 8]", 0),
        wrong("eps -1e-05 must not be negative", name, "a[64, 8]", -1e-5),
    ]


def masked(name: str) -> list[Wrong]:
    return [
        wrong("a must be F32, not I32", name, "a[64, 8] I32", 0),
        wrong("n_past -1 must not be negative", name, "a[64, 8]", -1),
    ]


def soft(mask: str, rule: str = MASK, shows: str | None = None) -> Wrong:
    return wrong(rule, "soft_max", "a[64, 8, 4, 6]", mask, shows=shows)


def roped(rule: str, shows: str, **changed: Any) -> Wrong:
    return wrong(rule, "rope", **ROPE | changed, shows=shows)


def biases(rule: str, shows: str, **changed: str) -> Wrong:
    return wrong(rule, "add_id", **BIASES | changed, shows=shows)


def experts(rule: str, shows: str, **changed: str) -> Wrong:
    return wrong(rule, "mul_mat_id", **EXPERTS | changed, shows=shows)


def flash(rule: str, shows: str, **changed: Any) -> Wrong:
    return wrong(rule, "flash_attn_ext", **FLASH | changed, shows=shows)


def scatter(rule: str, shows: str, **changed: str) -> Wrong:
    return wrong(rule, "set_rows", **SCATTER | changed, shows=shows)


WRONG = [
    *binary("add"),
    biases("a " + FLOAT + "I32", "a", a="a[64, 2, 8] I32"),
    biases("b " + FLOAT + "Q8_0", "b", b="b[64, 4] Q8_0"),
    biases("ids must be I32, not I64", "ids", ids="ids[2, 8] I64"),
    biases("a must have at most three dimensions", "a b ids", a="a[64, 2, 8, 2]"),
    biases("b and ids two", "a b ids", b="b[64, 4, 2]"),
    biases("b and ids two", "a b ids", ids="ids[2, 8, 1, 2] I32"),
    biases("ne[0] must be equal", "a b", b="b[32, 4]"),
    biases("ids.ne[:2] must equal a.ne[1:3]", "a ids", ids="ids[2, 7] I32"),
    biases("ids.ne[:2] must equal a.ne[1:3]", "a ids", ids="ids[1, 8] I32"),
    *binary("sub"),
    *binary("mul"),
    *binary("div"),
    *mapped("scale", 2),
    *mapped("sqr"),
    *mapped("sqrt"),
    *mapped("log"),
    *mapped("fill", 0),
    *mapped("clamp", 0, 1),
    wrong("low 1 must not exceed high 0", "clamp", "a[64, 8]", 1, 0),
    *mapped("unary", UnaryOp.TANH, by="tanh"),
    wrong(ROWS, "unary", "turned a[64, 8]", UnaryOp.TANH, by="tanh"),
    *mapped("silu"),
    *mapped("gelu"),
    *mapped("relu"),
    *gated("glu", GluOp.GEGLU_ERF, by="geglu_erf"),
    wrong("swapped needs", "glu", "a[4]", "b[4]", GluOp.SWIGLU, swapped=True, by="swiglu"),
    *gated("swiglu"),
    *gated("geglu"),
    *gated("reglu"),
    *normed("norm"),
    *normed("rms_norm"),
    wrong("a must be F32, not I32", "soft_max", "a[64, 8] I32"),
    wrong("a must be contiguous", "soft_max", "gaps a[64, 8]"),
    wrong("max_bias 8 needs a mask", "soft_max", "a[64, 8]", max_bias=8),
    soft("mask[64, 8] BF16", "mask must be F32 or F16, not BF16", shows="mask"),
    soft("gaps mask[64, 8]", "the mask must be contiguous"),
    soft("mask[1, 8]"),
    soft("mask[64, 7]"),
    soft("mask[64, 8, 3]"),
    soft("mask[64, 8, 1, 4]"),
    soft("mask[64, 8, 0]"),
    roped("a must be F32 or F16, not BF16", "a", a="a[64, 4, 8] BF16"),
    roped("pos must be I32, not F32", "pos", pos="pos[8]"),
    roped(POS, "a pos", pos="pos[4] I32"),
    roped(POS, "a pos", pos="pos[8, 2] I32"),
    roped(ROWS, "a", a="turned a[64, 4, 8]"),
    roped(f"n_dims 0 {EVEN}", "a", n_dims=0),
    roped(f"n_dims 31 {EVEN}", "a", n_dims=31),
    roped(f"n_dims 66 {EVEN}", "a", n_dims=66),
    roped("freq_scale 0 must be above 0", "a", freq_scale=0),
    roped("YaRN (ext_factor 1) needs n_ctx_orig above 0", "a", ext_factor=1),
    roped("freq_factors must be F32, not F16", "ff", freq_factors="ff[32] F16"),
    roped("freq_factors must have at least 32 elements", "ff", freq_factors="ff[31]"),
    wrong("a must be F32, not I32", "argsort", "a[64, 8] I32"),
    wrong("k 0 must be 1 to ne[0]", "argsort_top_k", "a[64, 8]", 0),
    wrong("a must be F32, not I32", "argsort_top_k", "a[64, 8] I32", 5, by="argsort"),
    wrong("k 0 must be 1 to ne[0]", "top_k", "a[64, 8]", 0),
    wrong("k 65 must be 1 to ne[0]", "top_k", "a[64, 8]", 65),
    wrong("a must be F32, not I32", "top_k", "a[64, 8] I32", 5),
    wrong("a must be F32, not I32", "sum_rows", "a[64, 8] I32"),
    *masked("diag_mask_inf"),
    *masked("diag_mask_zero"),
    wrong(MUL, "mul_mat", "a[64, 8]", "b[48]"),
    wrong(MUL, "mul_mat", "a[4, 4, 2]", "b[4, 4, 3]"),
    wrong(MUL, "mul_mat", "a[4, 4, 2]", "b[4, 4]"),
    wrong(MUL, "mul_mat", "a[4, 4, 1, 2]", "b[4, 4, 2]"),
    wrong(MUL, "mul_mat", "a[4, 4, 0]", "b[4, 4, 0]"),
    wrong(MUL, "mul_mat", "a[4, 4, 1, 0]", "b[4, 4, 1, 0]"),
    wrong("a must be a float or quantized type, not I32", "mul_mat", "a[64, 8] I32", "b[64]"),
    wrong("a must not be transposed", "mul_mat", "turned a[64, 8]", "b[64, 2]"),
    wrong("b " + FLOAT + "Q8_0", "mul_mat", "a[64, 8]", "b[64] Q8_0", shows="b"),
    experts("ids must be I32, not I64", "ids", ids="ids[2, 8] I64"),
    experts("b " + FLOAT + "I32", "b", b="b[64, 2, 8] I32"),
    experts(FLAT, "a b ids", a="a[64, 16, 4, 2]"),
    experts(FLAT, "a b ids", b="b[64, 2, 8, 2]"),
    experts(FLAT, "a b ids", ids="ids[2, 8, 2] I32"),
    experts(FLAT, "a b ids", ids="ids[2, 8, 1, 2] I32"),
    experts("ne[0] must be equal", "a b", b="b[32, 2, 8]"),
    experts("a must be a float or quantized type, not I64", "a b", a="a[64, 16, 4] I64"),
    experts("a must not be transposed", "a b", a="turned a[64, 16, 4]"),
    experts(TOKENS, "b ids", b="b[64, 2, 7]"),
    experts(TOKENS, "b ids", b="b[64, 3, 8]"),
    experts(TOKENS, "b ids", b="b[64, 0, 8]"),
    flash("q must be F32, not F16", "q", q="q[64, 8, 5] F16"),
    flash("k " + POOL + "Q4_0", "k", k="k[128, 96] Q4_0"),
    flash("v " + POOL + "I32", "v", v="v[64, 96] I32"),
    flash("k must be a matrix", "k", k="k[128, 96, 2]"),
    flash("v must be a matrix", "v", v="v[64, 96, 1, 2]"),
    flash("q must have three dimensions", "q", q="q[64, 8, 5, 2]"),
    flash("q must have three dimensions", "q", q="q[0, 8, 5]"),
    flash("q must have three dimensions", "q", q="q[64, 0, 5]"),
    flash(HEADS, "q k", k="k[96, 96]"),  # no whole heads
    flash(HEADS, "q k", k="k[192, 96]"),  # 3 heads for 8
    flash(HEADS, "q k", k="k[1024, 96]"),  # 16 heads for 8
    flash(HEADS, "q k", k="k[0, 96]"),
    flash("v must have 2 heads, like k", "k v", v="v[65, 96]"),
    flash("v must have 2 heads, like k", "k v", v="v[0, 96]"),
    flash("k and v must have the same number of cells", "k v", v="v[64, 64]"),
    flash("cells must be a multiple of page_size 0", "k", page_size=0),
    flash("cells must be a multiple of page_size 36", "k", page_size=36),
    flash("pages must be I32, not F32", "pages", pages="pages[3, 2]"),
    flash("pages must be a matrix", "pages", pages="pages[3, 2, 2] I32"),
    flash("pages must be a matrix", "pages", pages="pages[3, 2, 1, 2] I32"),
    flash("seq must be I32, not I64", "seq", seq="seq[5] I64"),
    flash("seq must be a vector of q.ne[2] = 5", "q seq", seq="seq[6] I32"),
    flash("pos must be a vector of q.ne[2] = 5", "q pos", pos="pos[5, 2] I32"),
    wrong("not I64", "get_rows", "a[64, 8] I64", "ids[7] I32", shows="a"),
    wrong("ids must be I32, not I64", "get_rows", "a[64, 8]", "ids[7] I64", shows="ids"),
    wrong(GET, "get_rows", "a[64, 8]", "ids[7, 2] I32"),
    wrong(GET, "get_rows", "a[4, 4, 1, 2]", "ids[7] I32"),
    wrong(GET, "get_rows", "a[64, 8]", "ids[7, 1, 1, 2] I32"),
    scatter("b must be F32, not F16", "b", b="b[4, 7, 4, 6] F16"),
    scatter("ids must be I64 or I32, not F32", "ids", ids="ids[7, 2, 3]"),
    scatter(SET, "a b", a="a[8, 9, 4, 6]"),
    scatter(SET, "a b", a="a[4, 9, 2, 6]"),
    scatter(SET, "a b", a="a[4, 9, 4, 3]"),
    scatter(ROWS, "a b", a="turned a[4, 9, 4, 6]"),
    scatter(ROWS, "a b", b="turned b[4, 7, 4, 6]"),
    scatter(IDS, "b ids", ids="ids[6, 2, 3] I32"),
    scatter(IDS, "b ids", ids="ids[7, 3, 3] I32"),
    scatter(IDS, "b ids", ids="ids[7, 2, 4] I32"),
    scatter(IDS, "b ids", ids="ids[7, 2, 3, 2] I32"),
    scatter(IDS, "b ids", ids="ids[7, 0, 3] I32"),
    scatter("F32 cannot be converted to I64", "b", a="a[4, 9, 4, 6] I64"),
    wrong("both must have the same number of elements", "cpy", "a[64, 8]", "b[64, 7]"),
    wrong("I32 cannot be converted to F16", "cpy", "a[64] I32", "b[64] F16", shows="a"),
    wrong("Q4_0 cannot be converted to Q8_0", "cpy", "a[64] Q4_0", "b[64] Q8_0", shows="a"),
    wrong("ne[0] must be a multiple of 32 for Q8_0", "cpy", "a[16, 4]", "b[64] Q8_0", shows="a"),
    wrong("Q4_0 cannot be converted to F16", "cast", "a[64, 8] Q4_0", F16),
    wrong("I64 cannot be converted to F32", "cast", "a[64, 8] I64", F32),
    wrong("F32 cannot be converted to I64", "cast", "a[64, 8]", I64),
    wrong("ne[0] must be a multiple of 32 for Q4_0", "cast", "a[48, 2]", Q4_0),
    wrong("dim 4 must be 0 to 3", "concat", "a[64, 8]", "b[64, 8]", 4),
    wrong("dim -1 must be 0 to 3", "concat", "a[64, 8]", "b[64, 8]", -1),
    wrong("all dimensions but 0 must be equal", "concat", "a[64, 8]", "b[64, 9]", 0),
    wrong("types must be equal", "concat", "a[64, 8]", "b[64, 8] F16", 1),
    wrong("types must not be quantized", "concat", "a[64, 8] Q4_0", "b[64, 8] Q4_0", 1),
    wrong("a must not be quantized", "repeat", "a[64, 8] Q4_0", (64, 16)),
    wrong(
        "must be whole repetitions of a",
        "repeat",
        "a[64, 8]",
        (64, 12),
        also="REPEAT[64, 12] F32",
    ),
    wrong(
        "must be whole repetitions of a",
        "repeat",
        "a[64, 0]",
        (64, 12),
        also="REPEAT[64, 12] F32",
    ),
    wrong(COUNT, "cont", "a[64, 8]", (64, 9), also="CONT[64, 9] F32"),
    wrong("a must be contiguous", "reshape", "turned a[64, 8]", (512,)),
    wrong(COUNT, "reshape", "a[64, 8]", (64, 7), also="RESHAPE[64, 7] F32"),
    wrong(COUNT, "reshape", "a[64, 8]", (64, 9), also="RESHAPE[64, 9] F32"),
    wrong(f"axes [0, 1, 2] {AXES}", "permute", "a[64, 8]", (0, 1, 2)),
    wrong(f"axes [0, 1, 2, 2] {AXES}", "permute", "a[64, 8]", (0, 1, 2, 2)),
    wrong(f"axes [1, 2, 3, 4] {AXES}", "permute", "a[64, 8]", (1, 2, 3, 4)),
    wrong(f"axes [0, 1, 2, -1] {AXES}", "permute", "a[64, 8]", (0, 1, 2, -1)),
    wrong("quantized tensor must stay first", "permute", "a[64, 32] Q4_0", (1, 0, 2, 3)),
    wrong("a must not be quantized", "transpose", "a[64, 32] Q4_0"),
    wrong("offset -4 must not be negative", "view", "a[64, 8]", (4,), None, -4),
    wrong("strides [4] must have one entry for each of [4, 4]", "view", "a[64, 8]", (4, 4), (4,)),
    wrong("strides [4, -4] must have one entry for each", "view", "a[64, 8]", (4, 4), (4, -4)),
    wrong("stride nb[0] = 8 must equal a.nb[0] = 4", "view", "a[64, 8]", (4,), (8,)),
    wrong("strides [] must have one entry for each of []", "view", "a[64, 8]", (), ()),
    wrong("strides [4, 4, 4, 4, 4] must have", "view", "a[64, 8]", (4,), (4, 4, 4, 4, 4)),
    wrong("from byte 0 on does not fit", "view", "a[64, 8]", (64, 9)),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.call.name)
def test_bad_arguments_are_refused(case: Wrong) -> None:
    given: list[Tensor] = []
    with pytest.raises(GraphError) as error:
        case.call.build(given)
    message = str(error.value)
    assert message.startswith(f"{case.op or case.call.name}: ")
    assert case.rule in message
    assert case.also in message
    shown = {t.name for t in given} if case.shows is None else set(case.shows.split())
    assert shown <= {t.name for t in given}
    for t in given:
        assert t.name not in shown or repr(t) in message


def test_every_builder_is_in_both_tables() -> None:
    assert {case.call.name for case in RIGHT} == set(ops.__all__)
    assert {case.call.name for case in WRONG} == set(ops.__all__) - WITHOUT_RULES


def rules(file: Path) -> list[range]:
    """The lines of each call of `require…` in a file of builders."""
    return [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id.startswith("require")
    ]


def test_every_rule_is_broken_by_a_row() -> None:
    lines: dict[str, set[int]] = {}
    for case in WRONG:
        with pytest.raises(GraphError) as error:
            case.call.build([])
        for frame in traceback.extract_tb(error.tb):
            lines.setdefault(Path(frame.filename).name, set()).add(frame.lineno or 0)
    files = sorted(Path(ops.__file__).parent.glob("*.py"))
    n_rules = 0
    for file in files:
        if file.name == "check.py":
            continue
        for where in rules(file):
            n_rules += 1
            hit = lines.get(file.name, set()).intersection(where)
            assert hit, f"{file.name}:{where.start}: no row of WRONG breaks this rule"
    assert n_rules > 50
