"""Parameters of a model from options by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lamella.runtime.params import OpenParams


def open_params(path: str | Path, **given: Any) -> OpenParams:
    """The parameters with these options, of any group."""
    return OpenParams.make({"path": path, **given})
