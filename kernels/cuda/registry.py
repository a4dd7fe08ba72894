"""The NVIDIA GPUs of this machine, or the reason why none can be used.

    registry = find_cuda()
    scheduler = Scheduler([registry.devices()[0].init_backend(), CpuDevice().init_backend()])

Tested by tests/kernels/test_cuda_device.py and tests/kernels/test_devices.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from ...base.errors import BackendError
from ...graph import GGMLType, Tensor, ops
from ...sched.backend import CompileProgress, DeviceReport
from ..quants import WEIGHT_TYPES
from ..registry import Registry
from .bindings import CudaDriver
from .device import CudaDevice
from .driver import Compiler, Driver
from .kernel_set import KERNELS
from .nvrtc import NvrtcCompiler
from .presence import install_command, nvidia_device

FEW, MANY = 1, 512  # tokens: limited by memory bandwidth, or by arithmetic
N_TRIED: Final = 4096  # rows and columns of a matrix


class CudaRegistry(Registry):
    """The CUDA devices of this machine, or the reason why there are none. `versions`: of the
    driver and the compiler. `is_absent`: the machine has none."""

    name = "CUDA"
    packages = ("cuda-bindings",)

    def __init__(
        self,
        devices: Sequence[CudaDevice],
        reason: str = "",
        versions: str = "",
        *,
        is_absent: bool = False,
    ) -> None:
        self._devices = tuple(devices)
        self.is_absent = is_absent
        self.reason = reason
        self.versions = versions

    def devices(self) -> Sequence[CudaDevice]:
        return self._devices

    def report(self) -> DeviceReport:
        products = cuda_products() if self._devices else []
        facts: dict[str, Any] = {
            "reason": self.reason,
            "versions": self.versions,
            "products": [product._asdict() for product in products],
        }
        if not self._devices:
            return DeviceReport(facts, [f"not used: {self.reason}"])
        versions = self.versions.removeprefix("CUDA ")
        return DeviceReport(facts, [versions, *(product.line for product in products)])


class CudaProducts(NamedTuple):
    """The kernels of products with weights of these types, for few tokens and for many."""

    types: list[str]
    few: str
    many: str

    @property
    def line(self) -> str:
        types = " ".join(self.types)
        if not self.few:
            return f"leaves products of {types} to the CPU"
        kernels = dict.fromkeys((self.few, self.many))
        return f"multiplies {types} with {' and '.join(kernels)}"


def cuda_products() -> list[CudaProducts]:
    """The kernels of products by the types of weights. The names are empty without a kernel."""
    by_kernels: dict[tuple[str, str], list[str]] = {}
    for type in WEIGHT_TYPES:
        names = _product_kernel(type, FEW), _product_kernel(type, MANY)
        by_kernels.setdefault(names, []).append(type.name)
    return [CudaProducts(types, *names) for names, types in by_kernels.items()]


def _product_kernel(type: GGMLType, n_tokens: int) -> str:
    w, x = Tensor(type, (N_TRIED, N_TRIED)), Tensor(GGMLType.F32, (N_TRIED, n_tokens))
    node = ops.mul_mat(w, x)
    return KERNELS.calls_of(node)[-1].kernel.name if KERNELS.supports(node) else ""


def open_cuda(
    make_driver: Callable[[], Driver] = CudaDriver,
    make_compiler: Callable[[], Compiler] = NvrtcCompiler,
    progress: CompileProgress | None = None,
) -> CudaRegistry:
    """The machine's CUDA devices, or the reason why none can be used."""
    try:
        driver = make_driver()
        gpus = driver.gpus()
        if not gpus:
            return CudaRegistry((), "no NVIDIA GPU of compute capability 7.5 or newer is visible")
        compiler = make_compiler()
        _check_versions(driver.version, compiler.version)
    except BackendError as e:
        return CudaRegistry((), str(e))
    devices = [CudaDevice(gpu, compiler, progress) for gpu in gpus]
    return CudaRegistry(devices, versions=f"CUDA driver {driver.version}, {compiler.version}")


def _check_versions(driver: str, compiler: str) -> None:
    """Raise BackendError if the compiler's major version of CUDA is newer than the driver's."""
    found = re.search(r"NVRTC (\d+)", compiler)
    if found and int(found[1]) > int(driver.partition(".")[0]):
        raise BackendError(
            f"{compiler} compiles for newer NVIDIA drivers than this one, for CUDA {driver}: "
            + install_command()
        )


@cache
def find_cuda() -> CudaRegistry:
    """The machine's CUDA devices. The process looks for them once."""
    if nvidia_device():
        return open_cuda()  # slow: imports NVIDIA's bindings
    return CudaRegistry((), "this machine has no NVIDIA device", is_absent=True)
