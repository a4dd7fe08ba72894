"""The cache folder: compiled kernels, images of GPU kernels and downloaded files.

It is LAMELLA_CACHE, or else the user's cache folder. A temporary folder replaces a folder that
cannot be written. Tested by tests/base/test_folders.py.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import platformdirs

from .log import get_logger
from .settings import CACHE

REMEDY: Final = f"set {CACHE.name} or --cache-dir to a folder that can be written"
PRIVATE: Final = 0o700

log = get_logger("base")


def cache_folder(*names: str) -> Path:
    """The folder `names` of the cache, such as `cache_folder("kernels", key)`.

    An existing folder is used even if it is read-only. A missing one may not be made yet; if it
    cannot be made, this is a temporary folder, and one warning reports it.
    """
    root = cache_root()
    folder = root.joinpath(*names)
    if folder.exists():
        return folder
    problem = _problem(root)
    return _temporary(root, problem).joinpath(*names) if problem else folder


def cache_root() -> Path:
    """The cache's own folder, which may be missing or read-only."""
    return Path(os.path.expanduser(CACHE() or platformdirs.user_cache_dir("lamella")))


@cache
def _problem(root: Path) -> str:
    """The reason why a folder cannot be written; empty if it can be. Makes the folder."""
    if root.parts[:1] == ("~",):
        return "there is no home folder"  # of a user without an entry in the password file
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as e:
        return e.strerror or str(e)
    return ""


@cache
def _temporary(root: Path, problem: str) -> Path:
    """A temporary folder that only this user can write. Returns `root` if there is none."""
    try:
        folder = Path(tempfile.gettempdir()) / f"lamella-{_user()}"
        folder.mkdir(mode=PRIVATE, exist_ok=True)
        if not _is_private(folder):  # another user could place machine code in it
            folder = Path(tempfile.mkdtemp(prefix="lamella-"))
    except OSError:
        log.warning(
            f"no cache: {root} cannot be written ({problem}), and there is no temporary folder. "
            f"Every start compiles its kernels again; {REMEDY}"
        )
        return root
    log.warning(
        f"the cache folder {root} cannot be written ({problem}): {folder} is used instead. "
        f"Kernels are compiled again when the system removes it; {REMEDY}"
    )
    return folder


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "cache"  # Windows has folders by user


def _is_private(folder: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    found = folder.lstat()
    is_folder = folder.is_dir() and not folder.is_symlink()
    return is_folder and found.st_uid == os.getuid() and not found.st_mode & 0o022
