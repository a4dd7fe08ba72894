"""Downloads of headers: a plan needs only the first bytes of a model's files.

Tested by tests/model/test_hub.py.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

from ...base.errors import ModelFileError, UnsupportedModelError
from ..gguf.header import read_header
from .blobs import fetch_start
from .files import HubModel, Remote
from .find import choose_model, first_path, is_cached
from .library import remote

HEADER_STEP: Final = 1 << 20  # bytes of the first try to read a header; then four times as many
HEADER_MAX: Final = 256 << 20


def find_header(wanted: HubModel, folder: Path, *, offline: bool = False) -> Path:
    """Return the path of a file that has at least the model's header.

    This is the cached file if there is one. Else the first bytes of the model's files are
    downloaded into `folder`.

    Raises:
        DownloadError: the model is not available; names the cause and a remedy.
    """
    listing, choice = choose_model(wanted, offline)
    if listing is None or is_cached(wanted.repo, listing, choice):
        return first_path(wanted.repo, listing, choice)
    for no, file in enumerate(choice.files):
        fetch_header(remote(wanted.repo, listing.commit, file), folder / Path(file.name).name, no)
    return folder / Path(choice.files[0].name).name


def fetch_header(file: Remote, path: Path, no: int) -> None:
    """Download the first bytes of a file to `path`, until they contain its header.

    `no` is the number of the file in a split model, from 0.

    Raises:
        DownloadError: the server refuses, the network fails, or the disk is full.
    """
    wanted = HEADER_STEP
    while True:
        n = min(wanted, file.size)
        fetch_start(file, path, n)
        if n == file.size or n >= HEADER_MAX or _has_header(path, no):
            return
        wanted *= 4


def _has_header(path: Path, no: int) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            read_header(str(path), data, no, len(data), header_only=True)
        except UnsupportedModelError:
            return True  # more bytes would not help
        except ModelFileError:
            return False
    return True
