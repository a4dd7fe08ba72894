"""The GPUs of tests: real ones with --cuda, otherwise emulated ones.

The same checks run on both: a test gets the right size from `gpus.pick`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pytest
from cuda_grid import GridCompiler, GridDriver, GridGpu, needs_compiler

from lamella.kernels.cuda.device import CudaDevice
from lamella.kernels.cuda.registry import CudaRegistry, find_cuda, open_cuda

T = TypeVar("T")

EMULATED_MEMORY = 2**28
DRIVER_BYTES = 2**27  # a real driver allocates them over time, for kernels, graphs and granularity
TO_FREE = ("streams", "graphs", "allocations", "host allocations")  # objects that tests must free


@dataclass(frozen=True)
class Gpus:
    """The devices of a test. An emulated machine has two."""

    registry: CudaRegistry
    is_real: bool

    @property
    def devices(self) -> Sequence[CudaDevice]:
        return self.registry.devices()

    @property
    def first(self) -> CudaDevice:
        return self.devices[0]

    def two(self) -> Sequence[CudaDevice]:
        """Two devices. Skips the test if there is one."""
        if len(self.devices) < 2:
            pytest.skip("there is only one GPU")
        return self.devices[:2]

    def pick(self, real: T, emulated: T) -> T:
        """The size for these devices."""
        return real if self.is_real else emulated


def real_gpus() -> Gpus:
    """The machine's GPUs, or an emulated one (benchmarks/gpu_rehearsal). Ends pytest if there are
    none."""
    registry = find_cuda()
    if not registry.devices():
        pytest.exit(f"--cuda: there is no CUDA device: {registry.reason}", returncode=1)
    return Gpus(registry, is_real="LAMELLA_TEST_GPU" not in os.environ)


@contextmanager
def emulated_gpus(
    n_gpus: int = 2,
    memory: int = EMULATED_MEMORY,
    reverse: bool = False,
    seed: int | None = None,
) -> Iterator[Gpus]:
    """Emulated GPUs, which must be empty at the end. Skips the test without a C++ compiler."""
    if needs_compiler.args[0]:
        pytest.skip(needs_compiler.kwargs["reason"])
    driver = GridDriver(n_gpus, memory, reverse=reverse, seed=seed)
    registry = open_cuda(lambda: driver, GridCompiler)
    yield Gpus(registry, is_real=False)
    gc.collect()
    for gpu in driver.grid_gpus:
        assert_empty(gpu)
    driver.close()


def assert_empty(gpu: GridGpu) -> None:
    """Check that all objects on an emulated device are freed."""
    left = {kind: n for kind, n in gpu.live.items() if n and kind in TO_FREE}
    assert not left, f"{gpu.info.name}: {left} are left"


@contextmanager
def leaves_nothing(device: CudaDevice) -> Iterator[None]:
    """Check that the block frees all that it allocates on a device; kernels stay loaded."""
    gc.collect()
    used, free, live = device.buffer_type.used, device.memory()[0], _live(device)
    yield
    gc.collect()
    assert device.buffer_type.used == used
    assert device.memory()[0] >= free - (0 if live else DRIVER_BYTES)
    assert _live(device) == live


def _live(device: CudaDevice) -> dict[str, int]:
    """The objects on an emulated device; empty for a real one."""
    if not isinstance(device.gpu, GridGpu):
        return {}
    return {kind: n for kind, n in device.gpu.live.items() if kind in TO_FREE}
