"""A backend of another package, and broken ones, for the tests of registries."""

from __future__ import annotations

from collections.abc import Sequence

from lamella.kernels.registry import Registry
from lamella.kernels.sim import SimDevice
from lamella.sched.backend import Device


class ToyRegistry(Registry):
    """A family with one device, which computes on the host."""

    name = "Toy"

    def __init__(self) -> None:
        self._device = SimDevice("TOY0", memory=2**30)

    def devices(self) -> Sequence[Device]:
        return (self._device,)


class IdleRegistry(Registry):
    """A family without devices."""

    name = "Idle"
    reason = "no idle device is plugged in"

    def devices(self) -> Sequence[Device]:
        return ()


class FailingRegistry(IdleRegistry):
    """A family that cannot list its devices."""

    def devices(self) -> Sequence[Device]:
        raise OSError("its driver is broken")


class SecondCuda(IdleRegistry):
    """A family with the name of another one."""

    name = "cuda"


def no_registry() -> int:
    return 5
