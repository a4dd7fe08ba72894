"""Looks up the devices, threads and buffer types that placement options name.

Tested by tests/runtime/test_fit.py and test_plan_exact.py.
"""

from __future__ import annotations

from typing import Final

from ..base.log import get_logger
from ..kernels.cpu.device import CpuDevice
from ..kernels.devices import (
    cpu_device,
    find_buffer_type,
    find_devices,
    is_gone,
    split_over,
)
from ..kernels.host import default_threads, usable_cpus
from ..model.params import PlacementParams
from ..model.placement import Placement
from ..sched.backend import CompileProgress
from .params import OpenParams

log = get_logger("devices")

NONE: Final = ("none",)  # no device beside the CPU; no name at all would stand for all GPUs


def open_placement(
    params: PlacementParams,
    on_compile: CompileProgress | None,
    beside: Placement | None = None,
) -> Placement:
    """Return the placement that the options describe, with the thread counts filled in. The number
    of layers whose experts are on the CPU is not in its overrides.

    Devices that `beside`, another model's placement, has too are the same objects: each model can
    use memory of the other.

    Raises:
        RequestError: an invalid option. UnknownDeviceError: a device that does not exist.
    """
    n_threads, n_threads_batch = _threads(params)
    params = params.change(n_threads=n_threads, n_threads_batch=n_threads_batch)
    if beside is None:
        n_most = max(n_threads, n_threads_batch)
        cpu = cpu_device(n_most, on_compile, poll=params.poll, repack=params.repack)
    else:
        assert isinstance(beside.cpu, CpuDevice), f"{beside.cpu!r} is not of `open_placement`"
        cpu = beside.cpu
    opened = {} if beside is None else {device.name: device for device in beside.devices}
    found = find_devices(params.devices, cpu, on_compile)
    known = [opened.get(device.name, device) for device in found]
    devices = split_over(known, params.split_mode, params.main_gpu)
    overrides = tuple(
        (pattern, find_buffer_type(name, devices, cpu)) for pattern, name in params.overrides
    )
    return Placement(cpu=cpu, devices=tuple(devices), params=params, overrides=overrides)


def without_lost(params: OpenParams) -> OpenParams:
    """The options without the devices of other machines that were in use and are gone.

    Their layers go to the devices that are left, or to the CPU.
    """
    names, draft_names = params.placement.devices, params.draft.draft_devices
    kept = [i for i, name in enumerate(names) if not is_gone(name)]
    if len(kept) < len(names):
        shares = params.placement.tensor_split or ()
        split = tuple(shares[i] for i in kept if i < len(shares))
        left = tuple(names[i] for i in kept) or NONE
        params = params.change(devices=left, tensor_split=split or None)
    if any(map(is_gone, draft_names)):
        left = tuple(name for name in draft_names if not is_gone(name)) or NONE
        params = params.change(draft_devices=left)
    return params


def _threads(params: PlacementParams) -> tuple[int, int]:
    """Thread counts for one token and for batches, at most one thread per usable CPU.

    More threads would only wait for each other.
    """
    n = params.n_threads or default_threads()
    n_batch = params.n_threads_batch or n
    usable = usable_cpus()
    if max(n, n_batch) > usable:
        log.warning(
            f"{max(n, n_batch)} threads were requested, but only {usable} can run at once: "
            f"using {usable}"
        )
    return min(n, usable), min(n_batch, usable)
