"""A process that computes op cases with the kernels of an ISA, for the tests of ISAs.

LAMELLA_ISA names the ISA, or the second argument: one to emulate. The first selects the cases:
`few`: products of matrices with one packed type and F32, and every fortieth of the other kernels,
`dots`: packed products with one weight type for each way to multiply bytes,
`main`: those of `few` and `dots`, and products with F16,
`some`: products, rows and attention with more types, and every fifth of the other kernels,
`all`: everything.
Prints JSON: the cases beyond their error limit, and the bits of all results.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Final
from unittest.mock import patch

if __name__ == "__main__" and sys.argv[2:]:
    import emulated_isa

    emulated_isa.emulate(sys.argv[2])  # before the kernels are imported

import cpu_run
import reference_run
from op_case import OpCase
from op_cases import op_cases
from reference_run import data, relative_error, values_of, with_prepared

from lamella.graph import GGMLType
from lamella.graph.op import Op
from lamella.kernels.cpu.compiler import worker_pool
from lamella.kernels.cpu.compiler.jit import Kernel, load_all
from lamella.kernels.cpu.kernel_set import KERNELS as CPU_KERNELS

PRODUCTS: Final = (Op.MUL_MAT, Op.MUL_MAT_ID, Op.GET_ROWS, Op.FLASH_ATTN_EXT)
# packed weights: one type for each way to multiply bytes
DOT_TYPES: Final = (GGMLType.Q4_0, GGMLType.Q8_0, GGMLType.Q5_K, GGMLType.Q6_K, GGMLType.Q2_K)
# more types: values looked up in tables, ternary, scaled by powers of two, and without blocks
MORE_TYPES: Final = (
    GGMLType.IQ4_NL,
    GGMLType.IQ1_M,
    GGMLType.IQ2_XS,
    GGMLType.IQ3_S,
    GGMLType.TQ1_0,
    GGMLType.MXFP4,
    GGMLType.NVFP4,
)
PLAIN_TYPES: Final = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.I32, GGMLType.I64)
FLOATS: Final = (GGMLType.F32, GGMLType.F16)
TYPES: Final = {
    "few": (GGMLType.F32, GGMLType.Q4_0),
    "dots": DOT_TYPES,
    "main": DOT_TYPES + FLOATS,
    "some": DOT_TYPES + MORE_TYPES + PLAIN_TYPES,
    "all": tuple(GGMLType),
}
STEPS: Final = {"few": 40, "main": 40, "some": 5}  # one of so many kernels other than PRODUCTS


def kernels_of(case: OpCase) -> list[Kernel]:
    calls = with_prepared(CPU_KERNELS.calls_of(case.node()))
    return [k for call in calls for k in call.kernels()]


def chosen(which: str) -> Iterator[OpCase]:
    """The cases that the argument selects."""
    seen: set[str] = set()
    n_others = 0
    for case in op_cases():
        if case.timed:
            continue
        node, names = case.node(), {k.name for k in kernels_of(case)}
        types = TYPES[which]
        if node.src[0].type not in types or node.type not in (*types, GGMLType.F32):
            continue
        if which in ("few", "main") and node.op is Op.FLASH_ATTN_EXT:  # takes long to compile
            continue
        if which == "few" and node.op is Op.MUL_MAT_ID:
            continue
        is_packed = any(name.startswith("packed_") for name in names)
        if which == "dots" and not is_packed:
            continue
        if which in STEPS and node.op not in PRODUCTS and not names <= seen:
            n_others += 1
            if n_others % STEPS[which] != 0:
                continue
        seen |= names
        yield case


def main(which: str) -> None:
    cases = list(chosen(which))
    with patch.object(worker_pool, "n_workers", return_value=0):  # other tests use the processors
        load_all(k for case in cases for k in kernels_of(case))
    wrong, bits = [], {}
    for case in cases:
        node = case.node()
        cpu_run.compute(node, n_threads=2)
        bits[case.name] = hashlib.sha256(data(node).tobytes()).hexdigest()
        if not relative_error(values_of(node), reference_run.run(case.node())) <= case.limit:
            wrong.append(case.name)
    print(json.dumps({"wrong": wrong, "bits": bits}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
