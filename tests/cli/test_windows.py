"""Without POSIX: what works with the modules that Windows has. A simulation on this system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import tiny_model

PROCESS = Path(__file__).with_name("windows_process.py")


def run(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROCESS, *map(str, args)],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("windows"))


def test_compiled_kernels_are_refused_with_a_remedy(model: Path) -> None:
    done = run("run", "-m", model, "-p", "a", "-n", "2", "-dev", "none")
    assert done.returncode == 1
    assert (
        "need POSIX threads, which Windows lacks: use WSL, or set LAMELLA_NO_JIT=1" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_numpy_s_kernels_the_plan_and_help_work(model: Path) -> None:
    generate = ("run", "-m", model, "-p", "a", "-n", "2", "-dev", "none", "-c", "64")
    plan = ("plan", model, "-dev", "none")
    done = run(*generate, "+", *plan, "+", "serve", "--help", LAMELLA_NO_JIT="1")
    assert done.returncode == 0, done.stderr
    generated, _, rest = done.stdout.partition("\ntiny.gguf: ")
    assert generated and "layers: " in rest and "usage: lamella serve" in rest


def test_the_package_is_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lamella", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("lamella ")
