"""The small model that comes with Lamella: its path, with a check of its SHA-256.

`models/recipe` makes the model. Tested by tests/model/test_shipped.py.
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
    """Return the model's file, after a check of its SHA-256.

    Raises:
        ModelFileError: the file or its checksum is missing, or they do not match.
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
            f"{path} is not the model that comes with Lamella: its SHA-256 is {found}, must be "
            f"{stored}; {_REMEDY}"
        )
    return path


_REMEDY: Final = "reinstall Lamella, or select another model with -m FILE or -hf USER/REPO"
