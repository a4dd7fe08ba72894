"""Looks for known faults of the packages that Lamella needs, as installed here: those of sbom.py.

pip-audit asks PyPI; it is installed in a temporary folder. The exit status is 0 without faults, 1
with faults, and 2 if they cannot be looked up. Tested by tests/cli/test_audit.py.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import sbom

TOOL: Final = "pip-audit>=2.9,<3"
# pip-audit skips a package that the index does not describe, and goes on without it
INCOMPLETE: Final = re.compile(r"could not be audited|ConnectionError|ServiceError|Traceback")


def requirements(bill: Mapping[str, Any]) -> str:
    """The packages of a bill of materials, as pip reads them."""
    return "".join(f"{each['name']}=={each['version']}\n" for each in bill["components"])


def install(folder: Path) -> Path | None:
    """Install pip-audit in a folder. Return the program; None if it cannot be installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install"]
    failed = subprocess.call([*pip, "--quiet", "--no-input", TOOL])
    return None if failed else programs / "pip-audit"


def audit(program: Path, wanted: Path) -> int:
    """Print pip-audit's report about the packages in a file. Return the exit status."""
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off"]
    done = subprocess.run(
        [str(program), *options, "--requirement", str(wanted)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, end="", flush=True)
    if INCOMPLETE.search(done.stdout):
        complain("not all known faults can be read: it needs https://pypi.org")
        return 2
    return done.returncode


def complain(message: str) -> None:
    print(f"scripts/audit: {message}", file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    """Look for faults. Return the exit status."""
    description = "Look for known faults of the packages that Lamella needs, as installed here."
    argparse.ArgumentParser(prog="scripts/audit", description=description).parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="lamella-audit-") as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(requirements(sbom.bill()), encoding="utf-8")
        program = install(Path(folder) / "venv")
        if program is None:
            complain("pip-audit cannot be installed: pip's error is above. It needs PyPI")
            return 2
        return audit(program, wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
