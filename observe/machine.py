"""Facts of this machine for `lamella doctor`: versions, the processor, and all other devices.

Each device has its own report. Facts are plain objects, for JSON; `lines` formats them as text.
Computes nothing. Tested by tests/cli/test_doctor.py.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ..base.units import size_text
from ..kernels.devices import registries
from ..kernels.registry import Registry
from ..sched.backend import Device, DeviceReport

PACKAGES: Final = ("lamella", "numpy", "numba")
LABEL: Final = 8  # characters


class DeviceFamily(NamedTuple):
    """A family of devices: its name, its shared report, and the report of each device.

    `reason`: why it is not used. `is_absent`: the machine has no such device.
    """

    name: str
    reason: str
    is_absent: bool
    shared: DeviceReport
    devices: list[DeviceReport]


class MachineFacts(NamedTuple):
    """All facts. `versions` is None for packages that are not installed."""

    python: str
    versions: dict[str, str | None]
    cpu: DeviceReport
    families: list[DeviceFamily]

    def as_json(self) -> dict[str, Any]:
        """Plain objects. Each family is a field with its name."""
        families = {
            family.name.lower(): {
                **family.shared.facts,
                "gpus": [device.facts for device in family.devices],
            }
            for family in self.families
        }
        return {"python": self.python, "versions": self.versions, "cpu": self.cpu.facts, **families}


def look(cpu: Device) -> MachineFacts:
    """The facts of this machine."""
    used = [registry for registry in registries() if registry.by_default]
    packages = [*PACKAGES, *(name for registry in used for name in registry.packages)]
    versions = {name: _version(name) for name in packages}
    families = [_family(registry) for registry in used]
    return MachineFacts(platform.python_version(), versions, _with_memory(cpu), families)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _family(registry: Registry) -> DeviceFamily:
    devices = [_with_memory(device) for device in registry.devices()]
    return DeviceFamily(
        registry.name, registry.reason, registry.is_absent, registry.report(), devices
    )


def _with_memory(device: Device) -> DeviceReport:
    """A device's report, with its memory added to the first line."""
    facts, (first, *lines) = device.report()
    free, total = device.memory()
    facts = {**facts, "memory_free": free, "memory_total": total}
    return DeviceReport(facts, [f"{first}, {size_text(free)} of {size_text(total)} free", *lines])


# --- as text ---


def lines(machine: MachineFacts) -> Iterator[str]:
    """The facts as text: a few lines for each part of the machine."""
    names = (f"{name} {v}" for name, v in machine.versions.items() if v and name != "lamella")
    yield from _part(
        "Lamella",
        [f"{machine.versions['lamella']}, Python {machine.python}, {', '.join(names)}"],
    )
    yield from _part("CPU", machine.cpu.lines)
    for family in machine.families:
        yield from _part(family.name, family.shared.lines)
        for device in family.devices:
            yield from _part(device.facts["name"], device.lines)


def _part(label: str, texts: Sequence[str]) -> Iterator[str]:
    for i, text in enumerate(texts):
        yield f"{label if i == 0 else '':{LABEL}}  {text}"
