"""The small model that comes with Lamella: where it lies, and that it is the one that was shipped.

`models/recipe` makes it. Tested by tests/model/test_shipped.py.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from ..base.errors import ModelFileError

# beside the rooms in a checkout, beside the other packages in an installation
FOLDER: Final = Path(__file__).resolve().parents[1] / "models"
NAME: Final = "lamella-stories-Q8_0.gguf"


def shipped_model(folder: Path = FOLDER) -> Path:
    """The file; its SHA-256 is the one stored beside it.

    Raises:
        ModelFileError: the file or its sum is missing, or the file is not the one shipped.
    """
    path = folder / NAME
    sum_file = path.with_name(f"{NAME}.sha256")
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        stored = sum_file.read_text(encoding="ascii", errors="replace").split(" ", 1)[0]
    except OSError as e:
        raise ModelFileError(
            f"{e.filename}: the model that comes with Lamella cannot be read: {e.strerror}; "
            f"{_REMEDY}"
        ) from e
    if found != stored:
        raise ModelFileError(
            f"{path}: this is not the model that comes with Lamella: its SHA-256 is {found}, "
            f"must be {stored}; {_REMEDY}"
        )
    return path


_REMEDY: Final = "install Lamella again, or give a model with -m FILE or -hf USER/REPO"
