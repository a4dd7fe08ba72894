"""Devices by name, as `-dev` and `lamella.load(devices=...)` take them.

    (nothing)         all usable GPUs
    none, CPU         only the CPU, which is always in use and always the last device
    CUDA0             the first NVIDIA GPU
    cuda              all NVIDIA GPUs; an error if there are none
    sim               a simulated GPU without a memory limit
    sim:24GiB         a simulated GPU with 24 GiB of memory; sim:24G is the same
    sim:24GiB:2       two of these, SIM0 and SIM1
    ray:NODE/CPU      the CPU of a node of a Ray cluster (`docs/cluster.md`)
    ray:NODE/CUDA0    a GPU there

Memory by name, as `-ot` takes it:

    CUDA0, SIM0, CPU        the memory of a device has the device's name
    CUDA_Host, SIM0_Host    pinned host memory, from which a device copies fast
    CPU_REPACK              weights in the CPU's fast layout

A package adds devices by an entry point of the group `lamella.backends`: a `Registry`, or a
function without parameters that returns one. Tested by tests/kernels/test_devices.py and
tests/kernels/test_backend_packages.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from ..alloc.buffer import BufferType
from ..base.errors import BackendError, RequestError, UnknownDeviceError
from ..base.log import get_logger
from ..sched.backend import CompileProgress, Device
from .compute import NewCompute
from .cpu.device import CpuDevice
from .cuda.registry import find_cuda
from .host import POLL
from .reference.compute import ReferenceCompute
from .registry import Registry
from .remote.ray_nodes import RayNodes
from .remote.registry import RemoteRegistry
from .sim.registry import SimRegistry

ENTRY_POINTS: Final = "lamella.backends"
NO_DEVICE: Final = ("cpu", "none")

log = get_logger("kernels")


# --- all families of devices ---


def registries(compute: NewCompute = ReferenceCompute) -> list[Registry]:
    """All families of devices of this machine except the CPU; those used by default come first.

    `compute` makes the kernels of simulated devices.
    """
    found = [*_built_in(compute), *_plugged_in()]
    return sorted(found, key=lambda registry: not registry.by_default)


def _built_in(compute: NewCompute) -> tuple[Registry, ...]:
    return find_cuda(), SimRegistry(compute), _remote()


@cache
def _remote() -> RemoteRegistry:
    return RemoteRegistry(RayNodes(open_device))


@cache
def _plugged_in() -> tuple[Registry, ...]:
    """The registries of other packages. A broken one is logged and left out."""
    found: list[Registry] = []
    taken = {*NO_DEVICE, *(built_in.name.lower() for built_in in _built_in(ReferenceCompute))}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            registry = _load(entry)
            if registry.name.lower() in taken:
                raise BackendError(f"the name {registry.name!r} is taken")
        except Exception as e:  # another package's error must not stop the start
            package = entry.dist.name if entry.dist else entry.value
            log.warning(
                f"backend {entry.name!r} of package {package!r} is not used: "
                f"{type(e).__name__}: {e}"
            )
            continue
        taken.add(registry.name.lower())
        found.append(registry)
    return tuple(found)


def _load(entry: EntryPoint) -> Registry:
    registry = entry.load()()
    if not isinstance(registry, Registry):
        raise BackendError(f"{entry.value} returns {registry!r}, which is no Registry")
    registry.devices()  # if it raises, it should raise here
    return registry


def unused_reasons(*, of_present: bool = False) -> list[str]:
    """The reasons, one line each, why families used by default cannot be used. `of_present`: only
    of families with a device in this machine."""
    return [
        f"{r.name} is not used: {r.reason}"
        for r in registries()
        if r.by_default and r.reason and not (of_present and r.is_absent)
    ]


# --- devices ---


def cpu_device(
    n_threads: int | None = None,
    progress: CompileProgress | None = None,
    *,
    repack: bool = True,
    poll: int = POLL,
) -> CpuDevice:
    """The CPU's device; see `CpuDevice`."""
    return CpuDevice(n_threads, progress, repack=repack, poll=poll)


def find_devices(
    names: Sequence[str], cpu: CpuDevice, progress: CompileProgress | None = None
) -> list[Device]:
    """The devices that take layers, in the order of their names; without `cpu`.

    Simulated devices compute with the CPU's kernels, on as many threads. The devices call
    `progress` while they compile kernels. All users of a GPU share its device, which calls the
    last `progress` that was given.

    Raises:
        UnknownDeviceError: lists the known names, and says why GPUs are not used.
    """
    families, found = registries(cpu.new_compute), list[Device]()
    for name in names or [family.name for family in families if family.by_default]:
        lower = name.strip().lower()
        if lower in NO_DEVICE:
            continue
        meant = (family.find(lower, found) for family in families)
        try:
            devices = next((devices for devices in meant if devices), ())
        except UnknownDeviceError as e:
            raise UnknownDeviceError(f"device {name!r}: {e}") from None
        if names and not devices:
            raise UnknownDeviceError(f"unknown device {name!r}; devices: {_known(families)}")
        found += devices
    for device in found:
        device.progress = progress
    return found


def open_device(name: str, n_threads: int | None = None) -> Device:
    """The device that `name` stands for, to be lent to another process.

    Raises:
        UnknownDeviceError: there is no such device, or the name stands for several.
    """
    cpu = cpu_device(n_threads)
    if name.lower() == "cpu":
        return cpu
    found = find_devices([name], cpu)
    if len(found) != 1:
        raise UnknownDeviceError(f"device {name!r} stands for {len(found)} devices, must be one")
    return found[0]


def is_gone(name: str) -> bool:
    """True if a device of another machine was in use under this name, and cannot be any more."""
    return _remote().is_gone(name.strip().lower())


def _known(families: Sequence[Registry]) -> str:
    names = ", ".join(["CPU", "none", *(name for r in families for name in r.known_names())])
    return ". ".join([names, *unused_reasons()])


def split_over(devices: Sequence[Device], split_mode: str, main_gpu: int) -> list[Device]:
    """The devices that take layers: all in mode "layer", the main one in mode "none".

    Raises:
        RequestError: the main device does not exist; lists those that do.
    """
    if split_mode == "layer" or not (devices or main_gpu):
        return list(devices)
    if main_gpu >= len(devices):
        there = ", ".join(f"{i} ({device.name})" for i, device in enumerate(devices))
        raise RequestError(f"main_gpu is {main_gpu}: there are {there or 'no devices'}")
    return [devices[main_gpu]]


def find_buffer_type(name: str, devices: Sequence[Device], cpu: Device) -> BufferType:
    """The memory with this name, case ignored, among that of these devices and the CPU.

    Raises:
        RequestError: the name is unknown; lists the known ones.
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
        raise RequestError(f"unknown buffer type {name!r}; buffer types: {there}")
    return found
