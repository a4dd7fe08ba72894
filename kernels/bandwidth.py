"""How fast devices read their memory, which limits how fast a model can generate.

Knows no models. Tested by tests/kernels/test_bandwidth.py.
"""

from __future__ import annotations

from ..base.settings import NO_JIT
from ..sched.backend import Device
from .cpu.ceiling import measure_read
from .cpu.device import CpuDevice
from .cuda.device import CudaDevice


def memory_bandwidth(device: Device, n_threads: int) -> float | None:
    """Bytes per second, measured in less than a second; None for a device that is only simulated,
    and for a CPU without compiled kernels. `n_threads` are those of a CPU.

    Raises:
        OutOfMemoryError: there is too little memory for it. BackendError: the device failed.
    """
    if isinstance(device, CudaDevice):
        return device.bandwidth()
    if isinstance(device, CpuDevice) and not NO_JIT():
        return measure_read(n_threads)
    return None
