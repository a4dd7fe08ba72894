"""Simulated devices by name: sim, sim:SIZE, sim:SIZE:COUNT.

Tested by tests/kernels/test_devices.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count, islice
from typing import Final

from ...alloc.buffer import UNLIMITED
from ...base.errors import UnknownDeviceError
from ...sched.backend import Device
from ..compute import NewCompute
from ..registry import Registry
from .device import SimDevice

MAX_DEVICES: Final = 16  # most devices of one name
_NAME: Final = re.compile(
    r"sim(?::(?P<size>\d+(?:\.\d+)?)(?P<unit>[kmgt](?:i?b)?)(?::(?P<count>\d+))?)?"
)
_UNITS: Final = {"k": 10, "m": 20, "g": 30, "t": 40}


class SimRegistry(Registry):
    """Simulated devices. `find` makes a new one for each name; `compute` makes its kernels."""

    name = "SIM"
    by_default = False

    def __init__(self, compute: NewCompute) -> None:
        self._compute = compute

    def devices(self) -> Sequence[Device]:
        return ()

    def known_names(self) -> Sequence[str]:
        return ("sim, sim:SIZE, sim:SIZE:COUNT (SIZE as in 24GiB, 24G or 512MiB)",)

    def find(self, name: str, found: Sequence[Device]) -> Sequence[Device]:
        if name.partition(":")[0] != "sim":
            return ()
        match = _NAME.fullmatch(name)
        if match is None:
            raise UnknownDeviceError(
                "the size must be a number with a unit, such as 24GiB or 24G (2**30 bytes each), "
                "512M, or 24GB (10**9)"
            )
        n = int(match["count"] or 1)
        if not 1 <= n <= MAX_DEVICES:
            raise UnknownDeviceError(f"the number of devices must be 1 to {MAX_DEVICES}")
        memory = parse_size(match["size"], match["unit"]) if match["size"] else UNLIMITED
        taken = {device.name for device in found}
        names = (name for i in count() if (name := f"SIM{i}") not in taken)
        return [SimDevice(name, memory=memory, compute=self._compute) for name in islice(names, n)]


def parse_size(number: str, unit: str) -> int:
    """Bytes of a size as in 24 GiB or 24 G (2**30 each), or 24 GB (10**9)."""
    power = _UNITS[unit[0].lower()]
    base = 10 ** (power // 10 * 3) if unit[1:].lower() == "b" else 2**power
    return int(float(number) * base)
