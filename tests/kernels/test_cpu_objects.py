"""Object files: their target, and that loading one never ends the process."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lamella.base.errors import BackendError
from lamella.kernels.cpu.compiler import isa, numba_compile
from lamella.kernels.cpu.compiler.numba_compile import compile_object
from lamella.kernels.cpu.compiler.objects import load_objects
from lamella.kernels.cpu.simd.memory import (
    load_f16,
    load_f16_part,
    load_f16x16,
    load_i64,
    store_f16,
    store_f16_part,
    store_f16x16,
    store_i64,
)
from lamella.kernels.cpu.simd.vectors import LANES

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

HALVES = [1.5, -0.0, 65504.0, 6e-8, float("inf"), 0.1, -2.5]
COUNT = 2 * LANES + 5  # whole vectors, and a part of one


def caller(name: str) -> Callable[[int, int, int], None]:
    """A kernel that calls the function `name`, of one int64."""

    @intrinsic
    def call(_typing: Any, x: Any) -> Any:
        def codegen(ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
            b.call(cgutils.get_or_insert_function(b.module, kind, name), args)
            return ctx.get_dummy_value()

        return types.void(types.int64), codegen

    def function(p, ith, nth):
        call(p)

    return function


def add_seven(p, ith, nth):
    store_i64(p, load_i64(p) + 7)


def double(p, n):
    """Write twice `n` halves after them: by vectors, a part of a vector, and one by one."""
    for i in range(0, n - LANES, LANES):
        v = load_f16x16(p + 2 * i)
        store_f16x16(p + 2 * (n + i), v + v)
    rest = n - n % LANES
    v = load_f16_part(p + 2 * rest, n - rest)
    store_f16_part(p + 2 * (n + rest), v + v, n - rest)
    for i in range(n):
        store_f16(p + 2 * (2 * n + i), load_f16(p + 2 * i) + load_f16(p + 2 * i))


def call(address: int, *args: int) -> None:
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))(address)(*args)


def test_a_missing_function_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    broken = compile_object(caller("no_such_function"), "test_broken", 3)
    whole = compile_object(add_seven, "test_whole", 3)
    for _ in range(2):
        with pytest.raises(BackendError, match="kernel test_broken cannot be loaded"):
            load_objects({"test_whole": whole, "test_broken": broken})
    assert "no_such_function" in capfd.readouterr().err
    word = np.array([1])
    call(load_objects({"test_whole": whole})["test_whole"], word.ctypes.data, 0, 1)
    assert word[0] == 8


def test_numba_compiles_for_the_target_of_object_files() -> None:
    assert numba_compile._codegen().magic_tuple() == isa.target()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (("x86_64-unknown-linux-gnu", "haswell", "+avx2,+f16c,+fma"), True),
        (("x86_64-unknown-linux-gnu", "nehalem", "-avx2,-f16c,+sse4.2"), False),
        (("x86_64-unknown-linux-gnu", "x86-64", ""), False),
        (("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon"), True),
        (("arm64-apple-darwin", "apple-m1", ""), True),
        (("riscv64-unknown-linux-gnu", "generic-rv64", ""), False),
    ],
)
def test_targets_that_convert_halves(
    target: tuple[str, str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa, "target", lambda: isa.Target(*target))
    assert isa.converts_halves() is expected


def double_halves() -> list[float]:
    """The bits of all results of `double` in this process."""
    memory = np.zeros((3, COUNT), np.float16)
    memory[0] = np.resize(np.array(HALVES, np.float16), COUNT)
    kernel = load_objects({"double": compile_object(double, "double", 2)})["double"]
    call(kernel, memory.ctypes.data, COUNT)
    assert memory[2].tolist() == memory[1].tolist()
    bits: list[float] = memory.view(np.uint16)[1].tolist()
    return bits


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 has processors without F16C")
def test_a_processor_that_cannot_convert_halves(tmp_path: Path) -> None:
    settings = {"LAMELLA_ISA": "generic", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    output = json.loads(done.stdout)
    assert output["target"][1:] == ["x86-64", ""]
    assert output["doubled"] == double_halves()


if __name__ == "__main__":
    print(json.dumps({"target": isa.target(), "doubled": double_halves()}))  # noqa: T201
