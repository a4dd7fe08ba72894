"""For the tests of ISAs: a process that computes op cases with the kernels of LAMELLA_ISA.

Its argument says which cases: `products`, those in which instructions are chosen, or `some`, those
and every third kernel of the others. Prints JSON: the cases whose results are too far from the
reference's, and the bits of all of them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Final

import cpu_run
import reference_run
from op_cases import OpCase, op_cases
from reference_run import data, values_of
from test_cpu_ops import error

from lamella.graph.op import Op
from lamella.kernels.cpu.compiler.jit import Kernel, load_all
from lamella.kernels.cpu.kernel_set import KERNELS as CPU_KERNELS
from lamella.kernels.plan.calls import with_prepared

PRODUCTS: Final = (Op.MUL_MAT, Op.MUL_MAT_ID, Op.GET_ROWS)
MANY: Final = "flash_attn_ext"  # of large kernels, one for each two types: one of them will do
ONE: Final = "flash_attn_ext_q8_0_q8_0"


def kernels_of(case: OpCase) -> list[Kernel]:
    calls = with_prepared(CPU_KERNELS.calls_of(case.node()))
    return [k for call in calls for k in call.kernels()]


def chosen(which: str) -> Iterator[OpCase]:
    """The cases of a choice."""
    seen: set[str] = set()
    n_new = 0
    for case in op_cases():
        is_product = case.node().op in PRODUCTS
        if case.timed or not (is_product or which == "some"):
            continue
        names = {k.name for k in kernels_of(case)}
        if not names <= seen:
            n_new += not is_product
            if any(name.startswith(MANY) for name in names):
                if ONE not in names:
                    continue
            elif not is_product and n_new % 3 != 0:
                continue
        seen |= names
        yield case


def main(which: str) -> None:
    cases = list(chosen(which))
    load_all(k for case in cases for k in kernels_of(case))
    wrong, bits = [], {}
    for case in cases:
        node = case.node()
        cpu_run.compute(node, n_threads=2)
        bits[case.name] = hashlib.sha256(data(node).tobytes()).hexdigest()
        if not error(values_of(node), reference_run.run(case.node())) <= case.limit:
            wrong.append(case.name)
    print(json.dumps({"wrong": wrong, "bits": bits}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
