"""A registry: one family of devices, for example all CUDA GPUs (ggml's backend registry).

`kernels.devices` has the list of all registries. Another package adds its own by an entry point of
the group `lamella.backends`. Tested by tests/kernels/test_devices.py and
tests/kernels/test_backend_packages.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..sched.backend import Device, DeviceReport


class Registry(ABC):
    """A family of devices.

    `name` (upper or lower case) stands for all its devices. `reason` is one line: why none can be
    used. `is_absent`: the machine has no such device, and no start reports the reason.
    `by_default`: its devices are used by default. `doctor` reports versions of `packages`.
    """

    name: str
    reason: str = ""
    is_absent: bool = False
    by_default: bool = True
    packages: Sequence[str] = ()

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """The devices of this machine, always in the same order; none if they cannot be used."""

    def find(self, name: str, found: Sequence[Device]) -> Sequence[Device]:
        """The devices that `name`, in lower case, stands for; none if the name is unknown here.

        `found` are the devices of the names before this one. An UnknownDeviceError says what is
        wrong with the name, without the name.
        """
        return [d for d in self.devices() if name in (self.name.lower(), d.name.lower())]

    def known_names(self) -> Sequence[str]:
        """The names that `find` accepts, as error messages list them."""
        devices = [device.name for device in self.devices()]
        return [*devices, self.name.lower()] if devices else []

    def report(self) -> DeviceReport:
        """The facts that all devices of the family share."""
        lines = [f"not used: {self.reason}"] if self.reason else []
        return DeviceReport({"reason": self.reason}, lines)
