"""The command itself: it starts at once, and Ctrl-C while it starts is no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest
from commands import lamella

import lamella as package
from lamella.cli.parser import INTERRUPTED


def test_nothing_slow_is_imported_before_a_command_is_known() -> None:
    code = "import lamella, lamella.cli.main, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert not {"numpy", "numba", "aiohttp", "jinja2", "gguf"} & set(done.stdout.split())


def test_ctrl_c_while_a_command_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    done = lamella("run", "-p", "a")
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "\n")


def test_the_package_has_what_it_says() -> None:
    assert set(package.__all__) <= set(dir(package))
    assert {name for name in package.__all__ if getattr(package, name) is None} == set()
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = package.lode
