"""Compiles the kernels of a day with a GPU beforehand: the first step of its rehearsal.

They are those of the tests and of the benchmark's cases, also with the switches that are compared.
The other steps of the rehearsal compile those of models. The cache serves on every machine with the
same version of NVRTC and the same architecture. Tested by tests/observe/test_gpu_steps.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from bench_cuda import CEILING
from case_tensors import Shapes
from cuda_cases import calls_of, graph_calls, kernels_in_use
from gpu_cases import GpuCase, all_cases
from gpu_steps import COMPARED
from test_cuda_device_ops import cases as device_cases

from lamella.base.settings import SWITCHES, Switch
from lamella.graph import Graph
from lamella.kernels.cuda.limits import H100, sizes_of
from lamella.kernels.cuda.registry import find_cuda
from lamella.kernels.cuda.table import CudaCall, CudaKernel


def case_calls(case: GpuCase) -> Sequence[CudaCall]:
    """The launches of a case of the benchmark on an H100 or H200."""
    return graph_calls(Graph(case.build(Shapes(), 0)), limits=sizes_of(H100))


def kernels() -> Iterator[CudaKernel]:
    """All kernels, several times."""
    yield from kernels_in_use()
    yield from (call.kernel for case in device_cases(True) for call in calls_of(case.node()))
    for switch in (None, *(SWITCHES[compared.switch] for compared in COMPARED)):
        with switch.set(1) if isinstance(switch, Switch) else nullcontext():
            yield from (call.kernel for case in all_cases() for call in case_calls(case))
    yield CudaKernel(CEILING, "rate_s8")


def main() -> None:
    registry = find_cuda()
    if not registry.devices():
        sys.exit(registry.reason)
    device = registry.devices()[0]
    device.progress = lambda done, n, name, s: print(f"{done} of {n}, {s:.0f} s: {name}")
    device.library.load(kernels())
    print(device.library.folder)


if __name__ == "__main__":
    main()
