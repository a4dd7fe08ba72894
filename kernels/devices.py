"""Devices by name, as `-dev` and `lamella.load(devices=...)` take them.

    (nothing)         all NVIDIA GPUs that can be used
    none, CPU         no device but the processor, which is always there and always last
    CUDA0             the first NVIDIA GPU
    cuda              all of them; an error if there are none
    sim               a simulated GPU without a memory limit
    sim:24GiB         one with 24 GiB of memory
    sim:24GiB:2       two of those, SIM0 and SIM1

Memory by name, as `-ot` takes it: that of a device has the device's name, host memory from which a
device copies fast is called SIM0_Host or CUDA_Host, the CPU's fast layout of weights CPU_REPACK.
Tested by tests/kernels/test_devices.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from ..alloc.buffer import UNLIMITED, BufferType
from ..base.errors import RequestError, UnknownDeviceError
from ..sched.backend import Device
from .cpu.device import CpuDevice
from .cuda.device import CudaDevice, CudaRegistry, find_cuda
from .sim.device import SimDevice

SIMULATED: Final = "sim, sim:SIZE, sim:SIZE:COUNT (SIZE as in 24GiB or 512MiB)"
MAX_SIMULATED: Final = 16
SPLIT_MODES: Final = ("layer", "none")
CUTTING_MODES: Final = ("row", "tensor")  # llama.cpp has them, too
_SIM: Final = re.compile(r"sim(?::(?P<size>\d+(?:\.\d+)?)(?P<unit>[kmgt]i?b)(?::(?P<count>\d+))?)?")
_UNITS: Final = {"k": 10, "m": 20, "g": 30, "t": 40}

Progress = Callable[[int, int, str, float], None]  # kernels done, in all, one of them, seconds


def find_devices(
    names: Sequence[str], cpu: CpuDevice, progress: Progress | None = None
) -> list[Device]:
    """The devices that take layers, in the order they are named; `cpu` is not among them.

    Simulated ones compute with the CPU's kernels, on its threads. `progress` is told which kernels
    are compiled for GPUs; GPUs are the process's, so the last one given for them is told.

    Raises:
        UnknownDeviceError: lists the names there are, and says why there is no GPU.
    """
    found: list[Device] = []
    n_simulated = 0
    for name in names or ("cuda",):
        lower = name.strip().lower()
        if lower in ("cpu", "none"):
            continue
        simulated = _simulated(lower, cpu, n_simulated)
        n_simulated += len(simulated)
        gpus = [] if simulated else _gpus(lower, find_cuda())
        if not (simulated or gpus) and names:
            known = _known(find_cuda())
            raise UnknownDeviceError(f"no device is called {name!r}; there are: {known}")
        for gpu in gpus:
            gpu.library.progress = progress
        found += [*simulated, *gpus]
    return found


def cuda_registry() -> CudaRegistry:
    """The NVIDIA GPUs that can be used; none, and why in one line."""
    return find_cuda()


def split_over(devices: Sequence[Device], split_mode: str, main_gpu: int) -> list[Device]:
    """Those devices that take layers: all in mode "layer", the main one in mode "none".

    Raises:
        RequestError: there is no such mode, or no such device; lists those there are.
    """
    if split_mode not in SPLIT_MODES:
        why = "; a layer is computed whole, on one device" if split_mode in CUTTING_MODES else ""
        raise RequestError(
            f"split_mode is {split_mode!r}: must be one of {', '.join(SPLIT_MODES)}{why}"
        )
    if split_mode == "layer" or not (devices or main_gpu):
        return list(devices)
    if main_gpu >= len(devices):
        there = ", ".join(f"{i} ({device.name})" for i, device in enumerate(devices))
        raise RequestError(f"main_gpu is {main_gpu}: there are {there or 'no devices'}")
    return [devices[main_gpu]]


def find_buffer_type(name: str, devices: Sequence[Device], cpu: Device) -> BufferType:
    """The memory of that name, in any case, among all that these devices and the CPU bring.

    Raises:
        RequestError: there is none; lists those there are.
    """
    known: dict[str, BufferType] = {}
    for device in (cpu, *devices):
        host = device.host_buffer_type
        bufts = (device.buffer_type, *device.extra_buffer_types, *((host,) if host else ()))
        for buft in bufts:
            known.setdefault(buft.name.lower(), buft)
    found = known.get(name.strip().lower())
    if found is None:
        there = ", ".join(buft.name for buft in known.values())
        raise RequestError(f"no memory is called {name!r}; there are: {there}")
    return found


def _simulated(name: str, cpu: CpuDevice, first: int) -> list[SimDevice]:
    """The simulated devices of a name, numbered from `first` on; none if it is no such name."""
    match = _SIM.fullmatch(name)
    count = int(match["count"] or 1) if match else 0
    if match is None or not 1 <= count <= MAX_SIMULATED:
        return []
    memory = parse_size(match["size"], match["unit"]) if match["size"] else UNLIMITED
    return [
        SimDevice(f"SIM{first + i}", memory=memory, compute=cpu.new_compute) for i in range(count)
    ]


def _gpus(name: str, registry: CudaRegistry) -> list[CudaDevice]:
    """The GPUs of a name."""
    return [d for d in registry.devices() if name in ("cuda", d.name.lower())]


def _known(registry: CudaRegistry) -> str:
    """The names there are; why a GPU's is not among them."""
    gpus = [d.name for d in registry.devices()]
    names = ", ".join(["CPU", "none", *gpus, *(["cuda"] if gpus else []), SIMULATED])
    return f"{names}. CUDA is not used: {registry.reason}" if registry.reason else names


def parse_size(number: str, unit: str) -> int:
    """Bytes of a size as in 24 GiB (2**30) or 24 GB (10**9)."""
    power = _UNITS[unit[0].lower()]
    base = 2**power if "i" in unit.lower() else 10 ** (power // 10 * 3)
    return int(float(number) * base)
