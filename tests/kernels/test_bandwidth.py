"""Measuring the read bandwidth of devices. No test checks how high it is."""

from __future__ import annotations

import pytest

from lamella.base.settings import NO_JIT
from lamella.kernels.cpu import CpuDevice, ceiling, device
from lamella.kernels.sim import SimDevice


def test_the_processor_s_threads_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "measure_read", lambda n_threads: 5.0 * n_threads)
    assert CpuDevice().bandwidth(2) == 10.0


def test_read_bandwidth_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "TRIALS_S", 0.001)
    assert ceiling.measure_read(2, 1 << 22) > 0


def test_simulated_devices_and_numpy_s_kernels_have_no_bandwidth() -> None:
    assert SimDevice("SIM0").bandwidth(2) is None
    with NO_JIT.set(1):
        assert CpuDevice().bandwidth(2) is None
