"""Gives each Python process another GPU than the machine's, for `scripts/gpu_day --rehearse`.

Python imports this file at its start if PYTHONPATH has its folder. LAMELLA_TEST_GPU names the GPU:
`emulated` computes, slowly; `idle` computes nothing, and its kernels are compiled by NVRTC for
sm_90, into the cache. Tested by tests/observe/test_gpu_day.py.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Final

from lamella.kernels.cuda import registry

ROOT: Final = Path(__file__).resolve().parents[2]
MEMORY: Final = 1 << 28  # bytes of the emulated GPU
TESTS: Final = ("kernels", "model", "observe", "cuda")  # whose helpers programs need here


@cache
def other_gpu() -> registry.CudaRegistry:
    """The registry that takes the place of the machine's."""
    if os.environ["LAMELLA_TEST_GPU"] == "emulated":
        from cuda_grid import GridCompiler, GridDriver  # noqa: PLC0415 - of this GPU only

        driver = GridDriver(memory=MEMORY)
        return registry.open_cuda(lambda: driver, GridCompiler)
    from bench_cuda_engine import WatchedDriver  # noqa: PLC0415 - of this GPU only

    return registry.open_cuda(WatchedDriver)


sys.path += [str(ROOT / "benchmarks"), *(str(ROOT / "tests" / room) for room in TESTS)]
registry.find_cuda = other_gpu
