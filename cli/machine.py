"""What `lamella doctor` tells of a machine: versions, processor, GPUs, and which kernels they use.

Facts are plain objects, for JSON; `lines` writes them as text. Computes nothing. Tested by
tests/cli/test_doctor.py.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ..base.settings import ISA, NO_JIT
from ..graph import GGMLType, Tensor, ops
from ..kernels.cpu.compiler.isa import supported_isas
from ..kernels.cpu.compiler.jit import cache_folder
from ..kernels.cpu.device import CpuDevice, processor_name
from ..kernels.cpu.packed.formats import FORMATS
from ..kernels.cuda.device import CudaDevice, CudaRegistry
from ..kernels.cuda.kernel_set import KERNELS
from .bench_table import size_text

PACKAGES: Final = ("lamella", "numpy", "numba", "cuda-bindings")
FEW, MANY = 1, 512  # tokens: weights' memory, or multiplications, are what takes the time
N_TRIED: Final = 4096  # rows and columns of a matrix, which decide as well
LABEL: Final = 8  # characters


class Cpu(NamedTuple):
    """The processor; `kept` is where its compiled kernels are, None where NumPy's are used."""

    name: str
    n_threads: int
    isa: str
    memory_free: int
    memory_total: int
    packed_types: list[str]
    kept: str | None


class Products(NamedTuple):
    """The CUDA kernels of products with weights of these types, for few tokens and for many."""

    types: list[str]
    few: str
    many: str


class CudaGpu(NamedTuple):
    """A GPU; `kept` is where its compiled kernels are."""

    name: str
    model: str
    arch: int
    n_sm: int
    pci: str
    memory_total: int
    memory_free: int
    kept: str


class Cuda(NamedTuple):
    """All GPUs, or the `reason` why there is none."""

    reason: str
    versions: str
    products: list[Products]
    gpus: list[CudaGpu]


class Machine(NamedTuple):
    """All facts. `versions` is None for packages that are not installed."""

    python: str
    versions: dict[str, str | None]
    cpu: Cpu
    cuda: Cuda


def look(cpu: CpuDevice, registry: CudaRegistry) -> Machine:
    """The facts of this machine."""
    versions = {name: _version(name) for name in PACKAGES}
    return Machine(platform.python_version(), versions, _cpu(cpu), _cuda(registry))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu(cpu: CpuDevice) -> Cpu:
    free, total = cpu.memory()
    types = [] if NO_JIT() else [type.name for type in FORMATS]
    isa = ISA() if ISA() not in ("", "0") else supported_isas()[0]
    kept = None if NO_JIT() else str(cache_folder())
    return Cpu(processor_name(), cpu.n_threads, isa, free, total, types, kept)


def _cuda(registry: CudaRegistry) -> Cuda:
    gpus = [_gpu(device) for device in registry.devices()]
    return Cuda(registry.reason, registry.versions, cuda_products() if gpus else [], gpus)


def _gpu(device: CudaDevice) -> CudaGpu:
    info = device.gpu.info
    return CudaGpu(
        name=device.name,
        model=info.name,
        arch=info.arch,
        n_sm=info.n_sm,
        pci=info.pci,
        memory_total=info.total,
        memory_free=device.memory()[0],
        kept=str(device.library.folder),
    )


def cuda_products() -> list[Products]:
    """The kernels of products, by the types of weights that there are; no types: no kernel."""
    by_kernels: dict[tuple[str, str], list[str]] = {}
    for type in FORMATS:
        names = _product_kernel(type, FEW), _product_kernel(type, MANY)
        by_kernels.setdefault(names, []).append(type.name)
    return [Products(types, *names) for names, types in by_kernels.items()]


def _product_kernel(type: GGMLType, n_tokens: int) -> str:
    """The name of the kernel that multiplies; "" if there is none."""
    w, x = Tensor(type, (N_TRIED, N_TRIED)), Tensor(GGMLType.F32, (N_TRIED, n_tokens))
    node = ops.mul_mat(w, x)
    return KERNELS.calls_of(node)[-1].kernel.name if KERNELS.supports(node) else ""


# --- as text ---


def lines(machine: Machine) -> Iterator[str]:
    """The facts, a few lines for each part of the machine."""
    names = (f"{name} {v}" for name, v in machine.versions.items() if v and name != "lamella")
    yield from _part(
        "Lamella",
        [f"{machine.versions['lamella']}, Python {machine.python}, {', '.join(names)}"],
    )
    yield from _part("CPU", _cpu_lines(machine.cpu))
    cuda = machine.cuda
    yield from _part(
        "CUDA", [cuda.versions.removeprefix("CUDA ")] if cuda.gpus else [f"not used: {cuda.reason}"]
    )
    yield from _part("", (_products_line(p) for p in cuda.products))
    for gpu in cuda.gpus:
        yield from _part(gpu.name, _gpu_lines(gpu))


def _part(label: str, texts: Iterator[str] | Sequence[str]) -> Iterator[str]:
    for i, text in enumerate(texts):
        yield f"{label if i == 0 else '':{LABEL}}  {text}"


def _cpu_lines(cpu: Cpu) -> Iterator[str]:
    yield (
        f"{cpu.name}, {cpu.n_threads} thread{'s' if cpu.n_threads > 1 else ''}, {cpu.isa}, "
        f"{size_text(cpu.memory_free)} of {size_text(cpu.memory_total)} free"
    )
    if cpu.kept is None:
        yield f"computes with NumPy ({NO_JIT.name})"
        return
    yield f"packs weights of {' '.join(cpu.packed_types)}"
    yield f"keeps kernels in {cpu.kept}"


def _products_line(products: Products) -> str:
    types = " ".join(products.types)
    if not products.few:
        return f"leaves products of {types} to the CPU"
    kernels = dict.fromkeys((products.few, products.many))
    return f"multiplies {types} with {' and '.join(kernels)}"


def _gpu_lines(gpu: CudaGpu) -> Iterator[str]:
    yield (
        f"{gpu.model}, sm_{gpu.arch}, {gpu.n_sm} multiprocessors, {gpu.pci}, "
        f"{size_text(gpu.memory_free)} of {size_text(gpu.memory_total)} free"
    )
    yield f"keeps kernels in {gpu.kept}"
