"""sim: simulated devices, for tests and plans where the hardware is not at hand."""

from .backend import SimBackend
from .device import SimDevice
from .memory import SimBuffer, SimBufferType

__all__ = ["SimBackend", "SimBuffer", "SimBufferType", "SimDevice"]
