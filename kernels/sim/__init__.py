"""sim: simulated devices, for tests and for plans without the hardware."""

from .backend import SimBackend
from .device import SimDevice
from .memory import SimBuffer, SimBufferType

__all__ = ["SimBackend", "SimBuffer", "SimBufferType", "SimDevice"]
