"""Devices by name: simulated ones, GPUs, and the reasons for missing ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from lamella.alloc.buffer import UNLIMITED
from lamella.base.errors import BackendError, RequestError, UnknownDeviceError
from lamella.kernels import devices
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cuda import registry as cuda
from lamella.kernels.cuda.device import CudaDevice
from lamella.kernels.cuda.driver import Compiler, Driver, Gpu, GpuInfo
from lamella.kernels.cuda.limits import H100
from lamella.kernels.cuda.registry import CudaRegistry, open_cuda
from lamella.kernels.devices import (
    find_buffer_type,
    find_devices,
    split_over,
    unused_reasons,
)
from lamella.kernels.sim import SimDevice


@pytest.fixture(scope="module")
def cpu() -> CpuDevice:
    return CpuDevice(n_threads=1)


class NamedGpu:
    """A GPU that has only a description."""

    def __init__(self, index: int) -> None:
        self.info = GpuInfo(index, "Toy", 2**30, H100, "0000:00:00.0")


class NamedGpus:
    version = "12.9"

    def __init__(self, n: int) -> None:
        self.n = n

    def gpus(self) -> Sequence[Gpu]:
        return [cast(Gpu, NamedGpu(i)) for i in range(self.n)]


class NoCompiler:
    def __init__(self, version: str) -> None:
        self.version = version


def registry(n: int, compiler: str = "none") -> CudaRegistry:
    return open_cuda(
        lambda: cast(Driver, NamedGpus(n)), lambda: cast(Compiler, NoCompiler(compiler))
    )


@pytest.fixture(autouse=True)
def _without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's GPUs."""
    monkeypatch.setattr(devices, "find_cuda", lambda: CudaRegistry((), "no driver"))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> CudaRegistry:
    found = registry(2)
    monkeypatch.setattr(devices, "find_cuda", lambda: found)
    return found


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], []),
        (["CPU"], []),
        (["none"], []),
        (["sim"], [("SIM0", UNLIMITED)]),
        (["Sim:24GiB"], [("SIM0", 24 * 2**30)]),
        (["sim:1.5MiB"], [("SIM0", 3 * 2**19)]),
        (["sim:300M"], [("SIM0", 300 * 2**20)]),
        (["sim:8g:2"], [("SIM0", 2**33), ("SIM1", 2**33)]),
        (["sim:80GB:2"], [("SIM0", 80 * 10**9), ("SIM1", 80 * 10**9)]),
        (["sim:1GiB", "sim"], [("SIM0", 2**30), ("SIM1", UNLIMITED)]),
    ],
)
def test_names(cpu: CpuDevice, names: list[str], expected: list[tuple[str, int]]) -> None:
    assert [(d.name, d.memory()[1]) for d in find_devices(names, cpu)] == expected


@pytest.mark.parametrize(
    "name",
    ["", "gpu7", "simx", "cuda", "CUDA0", "all"],
)
def test_unknown_names_are_refused_with_the_known_ones(cpu: CpuDevice, name: str) -> None:
    with pytest.raises(
        UnknownDeviceError,
        match=rf"'{name}'; devices: CPU, none, sim.*\. CUDA is not used: no driver",
    ):
        find_devices(["sim", name], cpu)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("sim:", "the size must be a number with a unit, such as 24GiB"),
        ("Sim:24", "the size must be a number with a unit"),
        ("sim:24X", "the size must be a number with a unit"),
        ("sim:1GiB:0", "the number of devices must be 1 to 16"),
        ("sim:1GiB:99", "the number of devices must be 1 to 16"),
    ],
)
def test_wrong_sizes_of_simulated_devices(cpu: CpuDevice, name: str, wrong: str) -> None:
    with pytest.raises(UnknownDeviceError, match=f"device '{name}': {wrong}"):
        find_devices(["sim", name], cpu)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ["CUDA0", "CUDA1"]),
        (["cuda"], ["CUDA0", "CUDA1"]),
        (["CUDA1"], ["CUDA1"]),
        (["cuda1", " Cuda0"], ["CUDA1", "CUDA0"]),
        (["sim", "CUDA0", "sim"], ["SIM0", "CUDA0", "SIM1"]),
        (["none"], []),
    ],
)
@pytest.mark.usefixtures("two_gpus")
def test_gpus_by_name(cpu: CpuDevice, names: list[str], expected: list[str]) -> None:
    assert [d.name for d in find_devices(names, cpu)] == expected
    assert unused_reasons() == []


@pytest.mark.usefixtures("two_gpus")
def test_a_missing_gpu(cpu: CpuDevice) -> None:
    with pytest.raises(
        UnknownDeviceError,
        match=r"'CUDA2'; devices: CPU, none, CUDA0, CUDA1, cuda, sim, .*MiB\), ray:NODE.*$",
    ):
        find_devices(["CUDA2"], cpu)


def test_gpus_report_progress_to_their_last_user(cpu: CpuDevice, two_gpus: CudaRegistry) -> None:
    def progress(*_: Any) -> None: ...

    find_devices([], cpu)
    find_devices(["CUDA1"], cpu, progress)
    first, second = two_gpus.devices()
    assert (first.progress, second.progress) == (None, progress)
    found = find_devices([], cpu, progress)
    assert found == [first, second]  # devices are shared by the process: nothing is loaded twice
    assert first.progress is progress
    assert isinstance(found[0], CudaDevice)


def test_reasons_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> Driver:
        raise BackendError("no NVIDIA driver is installed")

    def no_compiler() -> Compiler:
        raise BackendError("NVRTC cannot be used")

    for found, reason in (
        (open_cuda(no_driver), "no NVIDIA driver is installed"),
        (open_cuda(lambda: cast(Driver, NamedGpus(1)), no_compiler), "NVRTC cannot be used"),
        (registry(0), "no NVIDIA GPU of compute capability 7.5 or newer is visible"),
    ):
        monkeypatch.setattr(devices, "find_cuda", lambda found=found: found)
        assert unused_reasons() == [f"CUDA is not used: {reason}"]
        assert found.devices() == ()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_machine_without_a_device_is_not_told(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "nvidia_device", lambda: is_there)
    monkeypatch.setattr(cuda, "open_cuda", lambda: CudaRegistry((), "no driver"))
    found = cuda.find_cuda.__wrapped__()
    monkeypatch.setattr(devices, "find_cuda", lambda: found)
    why = "no driver" if is_there else "this machine has no NVIDIA device"
    assert unused_reasons() == [f"CUDA is not used: {why}"]
    assert unused_reasons(of_present=True) == (unused_reasons() if is_there else [])


@pytest.mark.parametrize(
    ("compiler", "n_found"), [("NVRTC 11.8", 1), ("NVRTC 12.99", 1), ("NVRTC 13.0", 0)]
)
def test_a_compiler_for_newer_drivers(compiler: str, n_found: int) -> None:
    found = registry(1, compiler)  # the driver's version is 12.9
    assert len(found.devices()) == n_found
    assert ("compiles for newer NVIDIA drivers" in found.reason) is (n_found == 0)


# --- split mode ---

SIMS = (SimDevice("SIM0"), SimDevice("SIM1"))


def test_a_split_over_all_or_one() -> None:
    assert split_over(SIMS, "layer", 7) == list(SIMS)
    assert split_over(SIMS, "none", 1) == [SIMS[1]]
    assert split_over((), "none", 0) == []


@pytest.mark.parametrize(
    ("found", "mode", "main_gpu", "complaint"),
    [
        (SIMS, "none", 2, r"main_gpu is 2: there are 0 \(SIM0\), 1 \(SIM1\)"),
        ((), "none", 1, "main_gpu is 1: there are no devices"),
    ],
)
def test_invalid_splits(
    found: Sequence[SimDevice], mode: str, main_gpu: int, complaint: str
) -> None:
    with pytest.raises(RequestError, match=complaint):
        split_over(found, mode, main_gpu)


# --- memory by name ---


@pytest.mark.parametrize("name", ["CPU", "CPU_REPACK", "SIM0", "SIM0_Host", "SIM1", "SIM1_Host"])
@pytest.mark.parametrize("spell", [str, str.lower, str.upper, " {} ".format])
def test_memory_by_name(cpu: CpuDevice, name: str, spell: Callable[[str], str]) -> None:
    bufts = [cpu.buffer_type, *cpu.extra_buffer_types]
    bufts += [buft for d in SIMS for buft in (d.buffer_type, d.host_buffer_type) if buft]
    (expected,) = [buft for buft in bufts if buft.name == name]
    assert find_buffer_type(spell(name), SIMS, cpu) is expected


def test_memory_of_gpus_by_name(cpu: CpuDevice, two_gpus: CudaRegistry) -> None:
    first, second = two_gpus.devices()
    assert find_buffer_type("cuda1", (first, second), cpu) is second.buffer_type
    # each GPU has its own of that name; any of them will do
    assert find_buffer_type("cuda_host", (first, second), cpu) is first.host_buffer_type


def test_unknown_memory(cpu: CpuDevice) -> None:
    with pytest.raises(
        RequestError,
        match=r"^unknown buffer type 'CUDA0'; buffer types: CPU, CPU_REPACK, SIM0, SIM0_Host$",
    ):
        find_buffer_type("CUDA0", SIMS[:1], cpu)
    plain = CpuDevice(n_threads=1, repack=False)
    with pytest.raises(RequestError, match=r"'CPU_REPACK'; buffer types: CPU$"):
        find_buffer_type("CPU_REPACK", (), plain)
