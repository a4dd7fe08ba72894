"""Every op builder: its errors for bad arguments.

Each of a builder's rules (a call of `require…`) needs a row of WRONG that breaks it; tests check
this. `op_calls.py` describes the tensors in a row.
"""

from __future__ import annotations

import ast
import traceback
from dataclasses import dataclass
from pathlib import Path
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
)

from lamella.base.errors import GraphError
from lamella.graph import GGMLType, GluOp, Tensor, UnaryOp, ops

F16, F32, I32, I64 = GGMLType.F16, GGMLType.F32, GGMLType.I32, GGMLType.I64
Q4_0, Q8_0 = GGMLType.Q4_0, GGMLType.Q8_0

WITHOUT_RULES = {"dup"}


@dataclass(frozen=True, slots=True)
class Wrong:
    """A call that breaks one rule. `shows`: the tensors in the message by name, None: all."""

    call: Call
    rule: str
    shows: str | None = None
    also: str = ""
    op: str = ""  # the op's name in the message, if it differs from the builder's


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


FLOAT = "must be F32 or F16 or BF16, not "
POOL = "must be F16 or BF16 or F32 or Q8_0 or Q4_0 or Q4_1 or IQ4_NL or Q5_0 or Q5_1, not "
REPEAT = "the shape of a must be whole repetitions of b"
ROWS = "rows must be contiguous"
EQUAL = "shapes and types must be equal"
COUNT = "both shapes must have the same number of elements"
MASK = "the mask must have ne[0] of a, ne[1] of a or more, and divisors of a.ne[2:]"
BITS = "the mask must be contiguous, with 2 words for each row of a"
POS = "pos must be a vector of a.ne[2] positions"
EVEN = "must be even and at most ne[0]"
MUL = "ne[0] must be equal, and a.ne[2:] must divide b.ne[2:]"
FLAT = "a and b must have at most three dimensions, ids two"
TOKENS = "ids.ne[1] must equal b.ne[2], and b.ne[1] must divide ids.ne[0]"
HEADS = "k.ne[0] must be q.ne[0] times a divisor of n_head"
GET = "a.ne[2:] must equal ids.ne[1:3]"
SET = "a and b must have equal dimensions except ne[1]"
IDS = "ids.ne[0] must equal b.ne[1], and ids.ne[1:3] must divide b.ne[2:]"
GROUPS = {"b": "b[32, 2, 8]", "c": "c[32, 2, 8]"}
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


def lora(rule: str, shows: str, **changed: str) -> Wrong:
    return wrong(rule, "lora_a", **LORA | changed, shows=shows)


def added(rule: str, y: str = "y[32, 8]", b: str = "b[32, 16]", z: str = "z[16, 8]") -> Wrong:
    of_all = rule.startswith("z must be [")
    shown = None if of_all else "y b" if rule.startswith("ne[0]") else rule[0]
    return wrong(rule, "lora_b", y, b, z, shows=shown)


def index(rule: str, shows: str, **changed: Any) -> Wrong:
    return wrong(rule, "index_scores", **INDEX | changed, shows=shows)


def cells(rule: str, shows: str, **changed: Any) -> Wrong:
    return wrong(rule, "page_cells", **CELLS | changed, shows=shows)


def conv(rule: str, shows: str, **changed: str) -> Wrong:
    return wrong(rule, "ssm_conv", **CONV | changed, shows=shows)


def scan(rule: str, shows: str, **changed: str) -> Wrong:
    return wrong(rule, "ssm_scan", **SCAN | changed, shows=shows)


def delta(rule: str, shows: str, **changed: str) -> Wrong:
    return wrong(rule, "gated_delta_net", **DELTA | changed, shows=shows)


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
    index("q must be F32, not F16", "q", q="q[64, 8, 5] F16"),
    index("k " + POOL + "Q5_K", "k", k="k[256, 96] Q5_K"),
    index("weights must be F32, not I32", "weights", weights="weights[8, 5] I32"),
    index("rows of q must be contiguous", "q", q="turned q[64, 8, 5]"),
    index("rows of k must be contiguous", "k", k="turned k[64, 96] F16"),
    index("rows of weights must be contiguous", "weights", weights="turned weights[8, 5]"),
    index("q must have at most three dimensions", "q", q="q[64, 8, 5, 2]"),
    index("k must be [64, n_cells]", "q k", k="k[32, 96] F16"),
    index("weights must be [8, 5]", "q weights", weights="weights[8, 4]"),
    index("the number of cells must be a multiple of page_size 64", "k", page_size=64),
    index("the number of cells must be a multiple of page_size 0", "k", page_size=0),
    index("top_k 0 must be above 0", "q", top_k=0),
    index("pages must be I32, not F32", "pages", pages="pages[3, 2]"),
    index("pages must be a matrix", "pages", pages="pages[3, 2, 2] I32"),
    index("seq must be a vector of the 5 tokens", "seq", seq="seq[4] I32"),
    index("end must be I32, not I64", "end", end="end[5] I64"),
    cells("positions must be I32, not I64", "positions", positions="positions[4, 5] I64"),
    cells("positions must be a matrix", "positions", positions="positions[4, 5, 2] I32"),
    cells("page_size 0 must be above 0", "positions", page_size=0),
    cells("seq must be a vector of the 5 tokens", "seq", seq="seq[5, 2] I32"),
    lora("a must be F32, not F16", "a", a="a[64, 16] F16"),
    lora("x must be a matrix with contiguous rows", "x", x="turned x[64, 8]"),
    lora("parts must be I32, not F32", "parts", parts="parts[16]"),
    lora("ne[0] must be equal", "a x", x="x[32, 8]"),
    lora("ne[1] must be equal", "x scales", scales="scales[3, 4]"),
    lora("parts must be a vector of a.ne[1]", "a parts", parts="parts[8] I32"),
    added("b must be F32, not F16", b="b[32, 16] F16"),
    added("z must be a matrix with contiguous rows", z="z[16, 8, 2]"),
    added("ne[0] must be equal", b="b[64, 16]"),
    added("z must be [b.ne[1], y.ne[1]]", z="z[8, 8]"),
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
    wrong("XIELU has parameters: use xielu", "unary", "a[64, 8]", UnaryOp.XIELU),
    *mapped("xielu", 1, 1, 0.5, -1e-6),
    wrong(ROWS, "xielu", "turned a[64, 8]", 1, 1, 0.5, -1e-6),
    *mapped("silu"),
    *mapped("gelu"),
    *mapped("gelu_erf"),
    *mapped("relu"),
    *gated("glu", GluOp.GEGLU_ERF, by="geglu_erf"),
    wrong("swapped needs", "glu", "a[4]", "b[4]", GluOp.SWIGLU, swapped=True, by="swiglu"),
    *gated("swiglu"),
    *gated("geglu"),
    *gated("reglu"),
    *gated("swiglu_oai"),
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
    wrong("mask must be I32, not F32", "top_k", "a[64, 8]", 5, "mask[2, 8]", shows="mask"),
    wrong(BITS, "top_k", "a[64, 8]", 5, "mask[3, 8] I32"),
    wrong(BITS, "top_k", "a[64, 8]", 5, "mask[2, 4] I32"),
    wrong(BITS, "top_k", "a[64, 8]", 5, "turned mask[2, 8] I32"),
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
    flash("k " + POOL + "MXFP4", "k", k="k[128, 96] MXFP4"),
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
    flash("begin must be a vector of q.ne[2] = 5", "q begin", begin="begin[4] I32"),
    flash("end must be I32, not F32", "end", end="end[5]"),
    flash("sinks must be F32, not F16", "sinks", sinks="sinks[8] F16"),
    flash("sinks must be a vector of q.ne[1] = 8", "q sinks", sinks="sinks[2]"),
    flash("n_swa -1 must not be negative", "q", n_swa=-1),
    conv("x must be F32, not F16", "x", x="x[64, 8] F16"),
    conv("rows of w must be contiguous", "w", w="turned w[4, 64]"),
    conv("x must be a matrix", "x", x="x[64, 8, 2]"),
    conv("w must be [K, x.ne[0]], with K above 1", "x w", w="w[4, 32]"),
    conv("w must be [K, x.ne[0]], with K above 1", "x w", w="w[1, 64]"),
    conv("states must be F32, not F16", "states", states="states[192, 5] F16"),
    conv("states must be a matrix with contiguous rows of 192", "states", states="states[256, 5]"),
    conv("states must be a leaf", "states", states="gaps states[192, 5]"),
    conv("slots must be I32, not I64", "slots", slots="slots[2, 8] I64"),
    conv("slots must be [2, 8], contiguous", "slots", slots="slots[2, 7] I32"),
    conv("bias must be F32, not F16", "bias", bias="bias[64] F16"),
    conv("bias must be a contiguous vector of 64", "bias", bias="bias[32]"),
    scan("x must have at most three dimensions", "x", x="x[16, 6, 8, 2]"),
    scan("dt must be [6, 8]", "x dt", dt="dt[6, 7]"),
    scan("a must be [32, 6] or [1, 6]", "x a b", a="a[16, 6]"),
    scan("b must be [d_state, a divisor of n_head, n_tokens]", "x b", b="b[32, 4, 8]"),
    scan("b and c must have the same shape", "b c", c="c[32, 1, 8]"),
    scan("a of [32, 6] needs x of [1, 6]", "x a", a="a[32, 6]"),
    scan("a of [32, 6] needs x of [1, 6]", "x a", **MAMBA_1 | {"x": "gaps x[1, 6, 8]"}),
    scan(
        "a of [32, 6] needs b of one group", "a b", **MAMBA_1 | {k: f"{k}[32, 2, 8]" for k in "bc"}
    ),
    scan("states must be a matrix with contiguous rows of 3072", "states", states="states[32, 5]"),
    scan("d must be a contiguous vector of 6", "d", d="d[1, 6]"),
    delta("v must have at most three dimensions", "v", v="v[16, 6, 8, 2]"),
    delta("q must be [v.ne[0], a divisor of v.ne[1], v.ne[2]]", "q v", q="q[16, 4, 8]"),
    delta("q and k must have the same shape", "q k", k="k[16, 1, 8]"),
    delta("g must have the shape of beta or of v", "v g beta", g="g[16, 2, 8]"),
    delta("beta must be [6, 8]", "v beta", g="g[6, 1]", beta="beta[6, 1]"),
    delta("beta must be [6, 8]", "v beta", g="g[16, 6, 8]", beta="beta[16, 6, 8]"),
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


def test_every_builder_with_rules_is_in_the_table() -> None:
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
