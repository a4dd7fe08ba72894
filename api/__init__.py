"""Lamella: a llama.cpp-style inference server in Python. This is its public API."""

from .base.errors import (
    BackendError,
    CancelledError,
    ClosedError,
    ContextSizeError,
    GraphError,
    LamellaError,
    ModelFileError,
    OutOfMemoryError,
    OverloadedError,
    RequestError,
    ReserveError,
    SchedulingError,
    SettingError,
    TensorAccessError,
    UnknownDeviceError,
    UnsupportedModelError,
)
from .text_model import Model, load
from .version import __version__

__all__ = [
    "BackendError",
    "CancelledError",
    "ClosedError",
    "ContextSizeError",
    "GraphError",
    "LamellaError",
    "Model",
    "ModelFileError",
    "OutOfMemoryError",
    "OverloadedError",
    "RequestError",
    "ReserveError",
    "SchedulingError",
    "SettingError",
    "TensorAccessError",
    "UnknownDeviceError",
    "UnsupportedModelError",
    "__version__",
    "load",
]
