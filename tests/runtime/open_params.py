"""Options by name, as tests write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lamella.runtime.params import OpenParams


def open_params(path: str | Path, **given: Any) -> OpenParams:
    """What to open, with these options of whatever group."""
    return OpenParams.make({"path": path, **given})
