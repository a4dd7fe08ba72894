"""The wheel contains every file of every room and the default model, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import PurePosixPath

import pytest
from house import ROOMS, ROOT, repository_files

# files in rooms that are not installed: notes for readers of the source
NOT_INSTALLED = {".md"}
# the default model: its file and checksum, its card with a picture
SHIPPED = {"lamella-stories-Q8_0.gguf", "lamella-stories-Q8_0.gguf.sha256", "README.md", "loss.svg"}


def installed_as(file: PurePosixPath) -> str:
    """The path of a room's file in the wheel."""
    room, *inner = file.parts
    return "/".join(["lamella", *inner] if room == "api" else ["lamella", room, *inner])


@pytest.fixture(scope="module")
def checkout() -> list[PurePosixPath]:
    return repository_files(untracked=True)


@pytest.fixture(scope="module")
def wheel(checkout: list[PurePosixPath], tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel built from a copy, which has no old `build/` or egg-info."""
    copy = tmp_path_factory.mktemp("copy")
    for file in checkout:
        if file.parts[0] != "tests":
            target = copy / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, target)
    out = copy.parent / f"{copy.name}-dist"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    # not in the repository's root: its folders would hide installed packages
    run = subprocess.run(
        [*command, str(copy)], cwd=copy.parent, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (archive,) = out.iterdir()
    with zipfile.ZipFile(archive) as files:
        return set(files.namelist())


def test_the_wheel_contains_every_file_of_every_room(
    checkout: list[PurePosixPath], wheel: set[str]
) -> None:
    rooms = [file for file in checkout if file.parts[0] in ROOMS]
    wanted = {installed_as(file) for file in rooms if file.suffix not in NOT_INSTALLED}
    assert {"lamella/__init__.py", "lamella/py.typed", "lamella/graph/ops/data.py"} <= wanted
    wanted |= {f"lamella/models/{name}" for name in SHIPPED}
    packed = {name for name in wheel if not re.match(r"lamella-[^/]+\.dist-info/", name)}
    assert sorted(wanted - packed) == []
    assert sorted(packed - wanted) == []


def test_the_wheel_contains_the_license(wheel: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)
