"""Errors of a worker, as JSON, become the driver's.

Tested by tests/kernels/test_remote_device.py.
"""

from __future__ import annotations

from typing import Any

from ...base import errors
from ...base.errors import (
    BackendError,
    LamellaError,
    ModelFileError,
    OutOfMemoryError,
    TensorAccessError,
)
from .wire import to_json


def error_json(error: BaseException) -> bytes:
    """An error as the payload of a message."""
    kind = type(error).__name__
    args = error.args if isinstance(error, OutOfMemoryError) else ()
    text = str(error) if isinstance(error, LamellaError) else f"{kind}: {error}"
    return to_json({"kind": kind, "args": list(args), "text": text})


def remote_error(name: str, sent: dict[str, Any]) -> LamellaError:
    """The error that a worker sent, with the name of its device."""
    kind = getattr(errors, sent["kind"], BackendError)
    if kind is OutOfMemoryError:
        return OutOfMemoryError(name, sent["args"][1], sent["args"][2])
    if not issubclass(kind, BackendError | ModelFileError | TensorAccessError):
        kind = BackendError
    found: LamellaError = kind(f"{name}: {sent['text']}")
    return found
