"""For the tests of registries: a backend as another package brings it, and some that are broken."""

from __future__ import annotations

from collections.abc import Sequence

from lamella.kernels.registry import Registry
from lamella.kernels.sim import SimDevice
from lamella.sched.backend import Device


class ToyRegistry(Registry):
    """One device, which computes on the host."""

    name = "Toy"

    def __init__(self) -> None:
        self._device = SimDevice("TOY0", memory=2**30)

    def devices(self) -> Sequence[Device]:
        return (self._device,)


class IdleRegistry(Registry):
    """A family without devices here."""

    name = "Idle"
    reason = "no idle device is plugged in"

    def devices(self) -> Sequence[Device]:
        return ()


class FailingRegistry(IdleRegistry):
    """A family that cannot list its devices."""

    def devices(self) -> Sequence[Device]:
        raise OSError("its driver is broken")


class SecondCuda(IdleRegistry):
    """A family whose name another one has."""

    name = "cuda"


def no_registry() -> int:
    return 5
