"""cpu: the CPU backend, kernels compiled by Numba and run by a pool of threads."""

from .device import CpuBackend, CpuDevice

__all__ = ["CpuBackend", "CpuDevice"]
