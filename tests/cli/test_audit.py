"""scripts/audit: what is asked, and its exit status and message for each kind of answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import audit
import pytest

CLEAN = "No known vulnerabilities found\n"
FAULTY = "Found 1 known vulnerability in 1 package\nName Version ID\naiohttp 3.8.0 CVE-1\n"
UNKNOWN = f"{CLEAN}Name Skip Reason\nx Dependency not found on PyPI and could not be audited: x\n"


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with what a fake pip-audit prints; its first line is the exit status."""
    program, found = tmp_path / "pip-audit", tmp_path / "answer"
    program.write_text(
        f"#!{sys.executable}\n"
        "import shutil, sys\n"
        f"shutil.copy(sys.argv[sys.argv.index('--requirement') + 1], {str(tmp_path / 'asked')!r})\n"
        f"status, text = open({str(found)!r}).read().split('\\n', 1)\n"
        "sys.stdout.write(text)\n"
        "sys.exit(int(status))\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(audit, "install", lambda _: program)
    return found


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [(0, CLEAN, 0), (1, FAULTY, 1), (0, UNKNOWN, 2), (1, "requests...ConnectionError: x\n", 2)],
)
def test_exit_status(
    answer: Path, status: int, text: str, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    answer.write_text(f"{status}\n{text}")
    assert audit.main([]) == expected
    out, err = capsys.readouterr()
    assert out == text
    complaint = "scripts/audit: not all known faults can be read: it needs https://pypi.org\n"
    assert err == (complaint if expected == 2 else "")
    asked = answer.with_name("asked").read_text().splitlines()
    assert any(line.startswith("aiohttp==3.") for line in asked)
    assert not any(line.startswith(("lamella==", "pytest==")) for line in asked)


def test_without_a_network(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    called: list[list[str]] = []

    def fail(command: list[str]) -> int:
        called.append(command)
        return 1

    monkeypatch.setattr(subprocess, "call", fail)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    assert audit.main([]) == 2
    assert called[0][-1] == audit.TOOL and called[0][1:3] == ["-m", "pip"]
    message = "pip-audit cannot be installed: pip's error is above. It needs PyPI"
    assert capfd.readouterr().err == f"scripts/audit: {message}\n"


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        audit.main(["--help"])
    assert "known faults" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        audit.main(["--fix"])
    assert "unrecognized arguments: --fix" in capsys.readouterr().err
