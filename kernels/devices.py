"""Devices by name, as `-dev` and `lamella.load(devices=...)` take them.

    CPU               the processor, always there and always last
    sim               a simulated GPU without a memory limit
    sim:24GiB         one with 24 GiB of memory
    sim:24GiB:2       two of those, SIM0 and SIM1

Tested by tests/kernels/test_devices.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ..alloc.buffer import UNLIMITED
from ..base.errors import UnknownDeviceError
from ..sched.backend import Device
from .cpu.device import CpuDevice
from .sim.device import SimDevice

KNOWN: Final = "CPU, none, sim, sim:SIZE, sim:SIZE:COUNT (SIZE as in 24GiB or 512MiB)"
MAX_SIMULATED: Final = 16
_SIM: Final = re.compile(r"sim(?::(?P<size>\d+(?:\.\d+)?)(?P<unit>[kmgt]i?b)(?::(?P<count>\d+))?)?")
_UNITS: Final = {"k": 10, "m": 20, "g": 30, "t": 40}


def find_devices(names: Sequence[str], cpu: CpuDevice) -> list[Device]:
    """The devices that take layers, in the order they are named; `cpu` is not among them.

    Simulated ones compute with the CPU's kernels, on its threads.

    Raises:
        UnknownDeviceError: lists the names there are.
    """
    found: list[Device] = []
    for name in names:
        lower = name.strip().lower()
        if lower in ("cpu", "none"):
            continue
        match = _SIM.fullmatch(lower)
        count = int(match["count"] or 1) if match else 0
        if match is None or not 1 <= count <= MAX_SIMULATED:
            raise UnknownDeviceError(f"no device is called {name!r}; there are: {KNOWN}")
        memory = parse_size(match["size"], match["unit"]) if match["size"] else UNLIMITED
        for _ in range(count):
            found.append(SimDevice(f"SIM{len(found)}", memory=memory, compute=cpu.new_compute))
    return found


def parse_size(number: str, unit: str) -> int:
    """Bytes of a size as in 24 GiB (2**30) or 24 GB (10**9)."""
    power = _UNITS[unit[0].lower()]
    base = 2**power if "i" in unit.lower() else 10 ** (power // 10 * 3)
    return int(float(number) * base)
