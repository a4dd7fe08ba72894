"""Devices by name."""

from __future__ import annotations

import pytest

from lamella.alloc.buffer import UNLIMITED
from lamella.base.errors import UnknownDeviceError
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices


@pytest.fixture(scope="module")
def cpu() -> CpuDevice:
    return CpuDevice(n_threads=1)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], []),
        (["CPU"], []),
        (["none"], []),
        (["sim"], [("SIM0", UNLIMITED)]),
        (["Sim:24GiB"], [("SIM0", 24 * 2**30)]),
        (["sim:1.5MiB"], [("SIM0", 3 * 2**19)]),
        (["sim:80GB:2"], [("SIM0", 80 * 10**9), ("SIM1", 80 * 10**9)]),
        (["sim:1GiB", "sim"], [("SIM0", 2**30), ("SIM1", UNLIMITED)]),
    ],
)
def test_names(cpu: CpuDevice, names: list[str], expected: list[tuple[str, int]]) -> None:
    assert [(d.name, d.memory()[1]) for d in find_devices(names, cpu)] == expected


@pytest.mark.parametrize(
    "name", ["", "gpu7", "sim:", "sim:24", "sim:1GiB:0", "sim:1GiB:99", "simx"]
)
def test_unknown_names_are_refused_with_those_there_are(cpu: CpuDevice, name: str) -> None:
    with pytest.raises(UnknownDeviceError, match=rf"'{name}'; there are: CPU, none, sim"):
        find_devices(["sim", name], cpu)
