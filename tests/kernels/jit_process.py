"""For the tests of the compile cache: another process, which loads two kernels and tells how.

Prints JSON: what the kernels gave, what `progress` was told, the cache folder.
"""

from __future__ import annotations

import ctypes
import json

import numpy as np

from lamella.kernels.cpu.compiler.jit import Kernel, cache_folder, kernel, load_all
from lamella.kernels.cpu.simd.vectors import load_i64, store_i64

# mypy: disable-error-code="no-untyped-def, no-untyped-call"


@kernel
def test_add_seven(p, ith, nth):
    store_i64(p, load_i64(p) + 7)


@kernel
def test_times_three(p, ith, nth):
    store_i64(p, load_i64(p) * 3)


def call(called: Kernel, value: int, ith: int = 0, nth: int = 1) -> int:
    """What a kernel makes of a word."""
    memory = np.array([value], np.int64)
    word = ctypes.c_int64
    native = ctypes.CFUNCTYPE(None, word, word, word)(called.address)
    native(memory.ctypes.data, ith, nth)
    return int(memory[0])


def main() -> None:
    told: list[tuple[int, int, str]] = []
    kernels = (test_add_seven, test_times_three)
    load_all(kernels, lambda done, total, name, seconds: told.append((done, total, name)))
    values = [call(k, 10) for k in kernels]
    print(json.dumps({"values": values, "told": told, "folder": str(cache_folder())}))  # noqa: T201


if __name__ == "__main__":
    main()
