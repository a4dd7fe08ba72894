"""Runs tests with the lowest or the newest versions of the dependencies that pyproject.toml allows.

    scripts/versions lowest          # half a minute of tests that use every dependency
    scripts/versions newest --all    # all tests
    scripts/versions cuda12          # the newest bindings and compiler of CUDA 12, and their tests
    scripts/versions cuda13 --all    # the same of CUDA 13, with every kernel compiled

The versions are installed in a temporary folder; .venv stays as it is. The exit status is 0 if the
tests pass, 1 if they fail, and 2 if the versions cannot be installed.
Tested by tests/cli/test_versions.py.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
# tools that no test of the selection runs
SLOW: Final = (
    *("mypy", "ruff", "build", "selenium"),
    *("cuda-bindings", "nvidia-cuda-nvrtc-cu12", "ray"),
)
# models, templates, tokenizers, a server with its clients, grammars, compiled kernels, tools
SELECTION: Final = (
    "tests/model/test_gguf_read.py",
    "tests/model/test_chat_templates.py",
    "tests/model/test_vocab_words.py",
    "tests/model/test_vocab_unigram.py",
    "tests/model/test_guide.py",
    "tests/model/test_shipped.py",
    "tests/kernels/test_cpu_simd_vectors.py",
    "tests/model/test_hub.py",
    "tests/server/test_http_openai.py",
    "tests/server/test_http_protocol.py",
    "tests/server/test_otel.py",
    "tests/cli/test_tool_file.py",
)
# packages of CUDA by the extra of Lamella that has them
CUDA: Final = {"cuda12": "cuda", "cuda13": "cuda13"}
CUDA_SELECTION: Final = (
    "tests/kernels/test_cuda_bindings.py",
    "tests/kernels/test_cuda_compile.py",
    "tests/kernels/test_cuda_presence.py",
)
PYTEST: Final = ("pytest", "pytest-timeout", "pytest-xdist")
REQUIREMENT: Final = re.compile(r"(?P<name>[\w.-]+)(?:\[.*?\])?>=(?P<floor>[\w.]+)(?:,<[\w.]+)?")


def requirements(project: dict[str, Any], which: str, all_tests: bool) -> list[str]:
    """What the tests need, as pyproject.toml has it."""
    extras = project["optional-dependencies"]
    if which in CUDA:
        chosen = [tool for tool in extras["test"] if name_of(tool) in PYTEST]
        return [*project["dependencies"], *chosen, *extras[CUDA[which]]]
    left_out = () if all_tests else SLOW
    chosen = [tool for tool in extras["test"] if name_of(tool) not in left_out]
    return [*project["dependencies"], *chosen]


def name_of(requirement: str) -> str:
    """The package of a requirement."""
    return floor_of(requirement).partition("==")[0]


def floor_of(requirement: str) -> str:
    """The constraint of a requirement's lowest version: `a==1` for `a>=1,<2`.

    Raises:
        ValueError: the requirement has no lowest version.
    """
    found = REQUIREMENT.fullmatch(requirement)
    if found is None:
        raise ValueError(f"{requirement!r} in pyproject.toml must be NAME>=LOWEST,<LIMIT")
    return f"{found['name']}=={found['floor']}"


def install(python: Path, which: str, wanted: Sequence[str], constraints: Path) -> int:
    """Install the packages and Lamella for `python`. Return pip's exit status."""
    if which == "lowest":
        constraints.write_text("\n".join(floor_of(each) for each in wanted), encoding="utf-8")
    else:
        constraints.write_text("", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    # the modules that tests import are compiled by their first import
    options = ["--no-compile", "--no-input", "--disable-pip-version-check"]
    options += ["--constraint", str(constraints)]
    return subprocess.call([*pip, *options, *wanted, "--editable", str(ROOT)], cwd=ROOT)


def selected(which: str, all_tests: bool) -> Sequence[str]:
    """Pytest's arguments that choose the tests."""
    if which in CUDA:
        return [*CUDA_SELECTION, *(["--full"] if all_tests else [])]
    return [] if all_tests else SELECTION


def run_tests(python: Path, chosen: Sequence[str], arguments: Sequence[str]) -> int:
    """Run the tests. Return pytest's exit status."""
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    processes = ["-n", str(min(os.cpu_count() or 1, 4)), "--dist", "loadfile"]
    return subprocess.call([*command, *processes, *chosen, *arguments], cwd=ROOT)


def show(python: Path, wanted: Sequence[str]) -> None:
    """Print the versions that are installed."""
    names = [name_of(each) for each in wanted]
    code = "import sys, importlib.metadata as m\n"
    code += "print(*(f'{name} {m.version(name)}' for name in sys.argv[1:]), sep=', ')"
    subprocess.run([str(python), "-c", code, *names], check=True)


def main(arguments: Sequence[str]) -> int:
    """Install versions and run tests. Return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/versions", description=(__doc__ or "")[:97])
    choices = ("lowest", "newest", *CUDA)
    parser.add_argument("which", choices=choices, help="versions of the dependencies")
    parser.add_argument("--all", action="store_true", help="run all tests, not a part of them")
    args, others = parser.parse_known_args(arguments)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = requirements(project, args.which, args.all)
    with tempfile.TemporaryDirectory(prefix="lamella-versions-") as folder:
        venv = Path(folder) / "venv"
        python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        status = subprocess.call([sys.executable, "-m", "venv", "--without-pip", str(venv)])
        status = status or install(python, args.which, wanted, Path(folder) / "constraints.txt")
        if status != 0:
            message = "the {} versions cannot be installed: pip's error is above. It needs PyPI"
            print(f"scripts/versions: {message.format(args.which)}", file=sys.stderr)
            return 2
        show(python, wanted)
        return 1 if run_tests(python, selected(args.which, args.all), others) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
