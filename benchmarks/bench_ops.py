"""Time of each CPU kernel, measured on the op cases of the tests.

    scripts/bench ops [PATTERN] [--threads N] [--trials 7] [--all]

PATTERN is a regular expression for names of cases. Without it, the large cases are measured. A line
has the microseconds of one run (median of the trials), GB/s of the node and its sources, and GFLOPS
of matrix products. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "kernels"))

import cpu_run
from op_case import OpCase
from op_cases import op_cases
from reference_run import graph_of

from lamella.graph import Op
from lamella.graph.cost import cost
from lamella.kernels.cpu.device import processor_name
from lamella.kernels.cpu.plan import CpuPlan
from lamella.kernels.host import default_threads

TRIAL_S = 0.05


def measure(case: OpCase, n_threads: int, trials: int) -> dict[str, Any]:
    """Measure one case: warm up, choose the number of runs per trial, take the median."""
    node = case.node()
    cpu_run.prepare(node)
    plan, pool = CpuPlan(graph_of(node), cpu_run.address_of, n_threads), cpu_run.pool(n_threads)

    def seconds(n: int) -> float:
        begin = time.perf_counter()
        for _ in range(n):
            plan.run(pool)
        return time.perf_counter() - begin

    n = max(1, int(TRIAL_S / max(seconds(1), seconds(1), 1e-7)))
    us = 1e6 * statistics.median(seconds(n) / n for _ in range(trials))
    moved = cost([node])
    # the products of attention depend on its data
    flops = 2 * moved.n_mul_adds if node.op is not Op.FLASH_ATTN_EXT else 0
    return {
        "case": case.name,
        "us": round(us, 2),
        "GB/s": round(moved.n_bytes / us / 1e3, 2),
        "GFLOPS": round(flops / us / 1e3, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", help="regular expression for names of cases")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--trials", type=int, default=7)
    parser.add_argument("--all", action="store_true", help="include small cases")
    args = parser.parse_args()
    wanted = [
        case
        for case in op_cases()
        if (args.all or args.pattern or case.timed) and re.search(args.pattern or "", case.name)
    ]
    print(f"{processor_name()}, {args.threads} threads, median of {args.trials}")
    print(f"{'case':40} {'us':>10} {'GB/s':>8} {'GFLOPS':>8}")
    results = []
    for case in wanted:
        r = measure(case, args.threads, args.trials)
        results.append(r)
        print(f"{r['case']:40} {r['us']:10.2f} {r['GB/s']:8.2f} {r['GFLOPS'] or '':>8}")
    print(json.dumps({"threads": args.threads, "results": results}))


if __name__ == "__main__":
    main()
