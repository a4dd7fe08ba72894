"""A process that loads two kernels, for the tests of the compile cache.

Prints a line at the first call of `progress`. At the end it prints JSON: the kernels' results, the
calls of `progress`, the cache folder.
"""

from __future__ import annotations

import ctypes
import json

import numpy as np

from lamella.kernels.cpu.compiler.jit import Kernel, cache_folder, kernel, load_all
from lamella.kernels.cpu.simd.memory import load_i64, store_i64

# mypy: disable-error-code="no-untyped-def, no-untyped-call"


@kernel
def test_add_seven(p, ith, nth):
    store_i64(p, load_i64(p) + 7)


@kernel
def test_times_three(p, ith, nth):
    store_i64(p, load_i64(p) * 3)


def call(called: Kernel, value: int, ith: int = 0, nth: int = 1) -> int:
    """Run a kernel on a word and return the result."""
    memory = np.array([value], np.int64)
    word = ctypes.c_int64
    native = ctypes.CFUNCTYPE(None, word, word, word)(called.address)
    native(memory.ctypes.data, ith, nth)
    return int(memory[0])


def main() -> None:
    reports: list[tuple[int, int, str]] = []
    kernels = (test_add_seven, test_times_three)

    def report(done: int, total: int, name: str, _seconds: float) -> None:
        if not reports:
            print("compiling or waiting", flush=True)  # noqa: T201
        reports.append((done, total, name))

    load_all(kernels, report)
    values = [call(k, 10) for k in kernels]
    print(json.dumps({"values": values, "progress": reports, "folder": str(cache_folder())}))  # noqa: T201


if __name__ == "__main__":
    main()
