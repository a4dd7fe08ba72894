"""The fake driver of fake_libcuda.c, as the checks of cuda_bindings_process.py see it.

They are in a process of their own, as a process finds its driver once. Knows no check.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from lamella.base.errors import BackendError
from lamella.kernels.cuda.bindings import CudaDriver, CudaGpu

MEMORY = 1 << 20  # of a device
KIB = 1 << 10
CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


# --- the driver's side ---

FAKE = ctypes.CDLL("libcuda.so.1")
FAKE.fake_log.restype = ctypes.c_char_p


def log(name: str = "") -> list[str]:
    """The calls since the last `log`, or those named `name`."""
    lines = FAKE.fake_log().decode().splitlines()
    FAKE.fake_log_clear()
    return [line for line in lines if not name or line.split()[0] == name]


@contextmanager
def machine(**settings: object) -> Iterator[None]:
    """Use another machine in the block: see fake_libcuda.c."""
    names = {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        log()


@contextmanager
def fails(message: str, kind: type[Exception] = BackendError) -> Iterator[list[Exception]]:
    """The block must raise an error of this kind with this text. Yields a list for the error."""
    caught: list[Exception] = []
    try:
        yield caught
    except Exception as e:
        caught.append(e)
    assert caught, f"nothing was raised, {message!r} was expected"
    assert message in str(caught[0]), f"{caught[0]!r} lacks {message!r}"
    assert isinstance(caught[0], kind), f"{caught[0]!r} is no {kind.__name__}"


def gpus() -> list[CudaGpu]:
    found = CudaDriver().gpus()
    assert all(isinstance(gpu, CudaGpu) for gpu in found)
    log()
    return found  # type: ignore[return-value]


def pattern(size: int, seed: int = 1) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def back(gpu: CudaGpu, address: int, size: int) -> bytes:
    out = np.empty(size, np.uint8)
    gpu.read(out, address)
    return out.tobytes()


def words(*values: int) -> npt.NDArray[np.int64]:
    """A kernel's parameters: address, count, addend; and words that the fake ignores."""
    return np.array([*values, *range(90)], np.int64)
