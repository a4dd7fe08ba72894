"""The command itself: it starts fast, and Ctrl-C during the start prints no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import lamella, tiny_model

import lamella as package
from lamella.base.folders import cache_folder
from lamella.base.settings import CACHE
from lamella.cli.parser import INTERRUPTED


def test_the_start_imports_nothing_slow() -> None:
    code = "import lamella, lamella.cli.main, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert not {"numpy", "numba", "aiohttp", "jinja2", "gguf"} & set(done.stdout.split())


def test_ctrl_c_during_the_import_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    done = lamella("run", "-p", "a")
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "\n")


def test_the_cache_folder_is_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE.name, "")  # restored afterwards
    done = lamella("plan", tiny_model(tmp_path), "--cache-dir", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert cache_folder("kernels") == tmp_path / "cache" / "kernels"


def test_the_package_has_all_names_of_its_api() -> None:
    assert set(package.__all__) <= set(dir(package))
    assert {name for name in package.__all__ if getattr(package, name) is None} == set()
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = package.lode
