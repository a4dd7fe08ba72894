"""Kernels as functions: any number of arguments, and other threads run during a call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from lamella.kernels.cpu.compiler import jit
from lamella.kernels.cpu.compiler.jit import KERNELS, Kernel
from lamella.kernels.cpu.compiler.native import native
from lamella.kernels.cpu.simd.memory import load_i64, store_i64

# mypy: disable-error-code="no-untyped-def, no-untyped-call"


def add_one(at):
    store_i64(at, load_i64(at) + 1)


def digits(at, a, b, c, d):
    store_i64(at, a + 10 * b + 100 * c + 1000 * d)


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Kernel]]:
    """Declares kernels, which are removed after the test."""
    monkeypatch.setattr(jit, "read", lambda folder, name: None)
    monkeypatch.setattr(jit, "write", lambda folder, name, data: None)
    before = dict(KERNELS)
    yield Kernel
    KERNELS.clear()
    KERNELS.update(before)


def test_arguments(declare: Callable[..., Kernel]) -> None:
    word = np.zeros(1, np.int64)
    native(declare(add_one, 1))(word.ctypes.data)
    assert word[0] == 1
    five = native(declare(digits, 5))
    five(word.ctypes.data, 1, 2, 3, -4)
    assert word[0] == 321 - 4000
    with pytest.raises(TypeError):
        five(word.ctypes.data)
    assert five.argtypes == (ctypes.c_int64,) * 5  # type: ignore[attr-defined]
