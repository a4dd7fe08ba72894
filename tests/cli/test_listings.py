"""Flags that print something and end."""

from __future__ import annotations

import subprocess

import pytest
from commands import lamella

from lamella.cli.main import COMMANDS


def test_the_devices() -> None:
    done = lamella("serve", "--list-devices")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Available devices:\n")
    assert "sim:24GiB" in done.stdout


@pytest.mark.parametrize(
    ("typed", "word", "found"),
    [
        ("lamella", "se", "serve"),
        ("lamella serve", "--ctx-s", "--ctx-size"),
        ("lamella plan", "--tensor-s", "--tensor-split"),
        ("lamella run -m", "/et", "/etc"),
    ],
)
def test_completion_in_bash(typed: str, word: str, found: str, script: str) -> None:
    words = " ".join([*typed.split(), word])
    code = f"{script}\nCOMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}\n"
    done = subprocess.run(
        ["bash", "-c", code + '_lamella; printf "%s\\n" "${COMPREPLY[@]}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [found]


def test_variables_do_not_change_the_completion(
    monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("LLAMA_ARG_PORT", "x")
    assert lamella("list", "--completion-bash").stdout == script


@pytest.fixture(scope="module")
def script() -> str:
    done = lamella("run", "--completion-bash")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f" {name}" in done.stdout for name in COMMANDS)
    return done.stdout
