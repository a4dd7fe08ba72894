"""Lamella: a llama.cpp-style inference server in Python. This is its public API.

`Model` and `load` are imported at first use, so that importing `lamella` is fast.
"""

from typing import TYPE_CHECKING

from .base.errors import (
    BackendError,
    CancelledError,
    ClosedError,
    ContextSizeError,
    DoesNotFitError,
    DownloadError,
    GraphError,
    LamellaError,
    ModelFileError,
    OutOfMemoryError,
    OverloadedError,
    PlacementError,
    RequestError,
    ReserveError,
    SchedulingError,
    SettingError,
    StrictError,
    TensorAccessError,
    UnknownDeviceError,
    UnsupportedModelError,
)
from .version import __version__

if TYPE_CHECKING:
    from .text_model import Model, load

__all__ = [
    "BackendError",
    "CancelledError",
    "ClosedError",
    "ContextSizeError",
    "DoesNotFitError",
    "DownloadError",
    "GraphError",
    "LamellaError",
    "Model",
    "ModelFileError",
    "OutOfMemoryError",
    "OverloadedError",
    "PlacementError",
    "RequestError",
    "ReserveError",
    "SchedulingError",
    "SettingError",
    "StrictError",
    "TensorAccessError",
    "UnknownDeviceError",
    "UnsupportedModelError",
    "__version__",
    "load",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name in ("Model", "load"):
        from . import text_model  # noqa: PLC0415

        return getattr(text_model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
