"""Lamella: a llama.cpp-style inference server in Python. This is its public API."""

from .base.errors import (
    BackendError,
    GraphError,
    LamellaError,
    OutOfMemoryError,
    ReserveError,
    SchedulingError,
    SettingError,
    TensorAccessError,
    UnknownDeviceError,
)
from .version import __version__

__all__ = [
    "BackendError",
    "GraphError",
    "LamellaError",
    "OutOfMemoryError",
    "ReserveError",
    "SchedulingError",
    "SettingError",
    "TensorAccessError",
    "UnknownDeviceError",
    "__version__",
]
