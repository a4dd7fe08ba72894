"""CUDA's bindings: the real ones, on a fake driver (fake_libcuda.c).

Without a GPU, nothing else runs them. The checks are in cuda_bindings_process.py.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
PROCESS: Final = HERE / "cuda_bindings_process.py"
CHECKS: Final = [
    node.name
    for node in ast.parse(PROCESS.read_text()).body
    if isinstance(node, ast.FunctionDef)
    and any(ast.unparse(d) == "check" for d in node.decorator_list)
]

pytest.importorskip("cuda.bindings", reason="the package cuda-bindings is not installed")
if not (sys.platform == "linux" and shutil.which("cc")):
    pytest.skip("the fake driver needs a C compiler on Linux", allow_module_level=True)


def make_driver(folder: Path, *flags: str) -> None:
    """Compile the driver into a folder."""
    out = folder / "libcuda.so.1"
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-shared", "-fPIC", *flags]
    subprocess.run([*command, "-o", out, HERE / "fake_libcuda.c"], check=True)


def python(folder: Path, *args: str) -> str:
    """The output of a Python process whose driver is in `folder`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FAKE_CUDA", "CUDA_"))}
    done = subprocess.run(
        [sys.executable, *args],
        env={**kept, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def reason(folder: Path) -> str:
    """The reason why CUDA is not used."""
    code = "from lamella.kernels.cuda.registry import open_cuda; print(open_cuda().reason, end='')"
    return python(folder, "-c", code)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("driver")
    make_driver(folder)
    found: dict[str, str] = json.loads(python(folder, str(PROCESS)))
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_bindings(results: dict[str, str], check: str) -> None:
    assert not results[check], results[check]


def test_a_driver_from_before_cuda_12(tmp_path: Path) -> None:
    make_driver(tmp_path, "-DOLD")
    supported = r"it supports CUDA 11( at most|\.8), 12\.0 or newer is needed"
    assert re.fullmatch(f"the NVIDIA driver is too old: {supported}", reason(tmp_path))


def test_no_driver(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()  # found before the machine's own
    assert reason(tmp_path) == "no NVIDIA driver is installed"


def test_no_bindings(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["cuda"] = None
from lamella.kernels.cuda.registry import open_cuda
print(open_cuda().reason, end="")
"""
    output = python(tmp_path, "-c", code)
    assert output.startswith(
        f"the Python package cuda-bindings is missing: {sys.executable} -m pip install "
        "'cuda-bindings<13,>=12.9' 'nvidia-cuda-nvrtc-cu12<13,>=12.9'"
    )
    assert "\n" not in output
