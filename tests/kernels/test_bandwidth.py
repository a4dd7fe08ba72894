"""How fast devices read is measured where they are. How fast that is, no test asks."""

from __future__ import annotations

import pytest

from lamella.base.settings import NO_JIT
from lamella.kernels import bandwidth
from lamella.kernels.bandwidth import memory_bandwidth
from lamella.kernels.cpu import CpuDevice, ceiling
from lamella.kernels.sim import SimDevice


def test_the_processor_s_threads_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "measure_read", lambda n_threads: 5.0 * n_threads)
    assert memory_bandwidth(CpuDevice(), 2) == 10.0


def test_reading_alone_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "TRIALS_S", 0.001)
    assert ceiling.measure_read(2, 1 << 22) > 0


def test_nobody_knows_of_what_is_simulated_or_not_compiled() -> None:
    assert memory_bandwidth(SimDevice("SIM0"), 2) is None
    with NO_JIT.set(1):
        assert memory_bandwidth(CpuDevice(), 2) is None
