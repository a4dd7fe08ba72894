"""`scripts/setup` and `scripts/serve`, with a fake Python that only records installations."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# copies itself into .venv; as `python -m pip` it records its arguments and waits for the file `go`
PYTHON = f"""#!/bin/sh
case "$*" in
    "-m venv .venv")
        mkdir -p .venv/bin
        cp "$0" .venv/bin/python ;;
    "-m pip install"*)
        echo "$*" >> installed
        while [ ! -e go ]; do sleep 0.05; done
        [ ! -e broken ] || exit 1
        printf '#!/bin/sh\\necho "$PWD: $*"' > .venv/bin/lamella
        chmod +x .venv/bin/lamella ;;
    *) exec {sys.executable} "$@" ;;
esac
"""
INSTALLS = "Installing Lamella and its test tools into .venv (once, about a minute) ...\n"
WAITS = "Another process is installing into .venv: waiting for it ...\n"
INSTALLS_BARE = "Installing Lamella into .venv (once, about half a minute) ...\n"


class Checkout:
    """A folder with the two scripts and the fake Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "a python"
        self._started: list[subprocess.Popen[str]] = []
        (folder / "scripts").mkdir(parents=True)
        for name in ("setup", "serve"):
            shutil.copy(ROOT / "scripts" / name, folder / "scripts")
        (folder / "pyproject.toml").write_text("one")
        (folder / "go").touch()
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)

    def start(
        self, script: Path | str = "scripts/setup", *args: str, **env: object
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [self.folder / script, *args],
            env={**os.environ, "PYTHON": str(self.python), **{k: str(v) for k, v in env.items()}},
            cwd=self.folder.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(
        self, script: Path | str = "scripts/setup", *args: str, **env: object
    ) -> tuple[int, str, str]:
        """Exit status, stdout, stderr."""
        process = self.start(script, *args, **env)
        out, errors = process.communicate(timeout=250)
        return process.returncode, out, errors

    @property
    def installed(self) -> list[str]:
        """The installed targets so far, in order."""
        file = self.folder / "installed"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split()[-1] for line in lines]

    def close(self) -> None:
        """Let all started processes end."""
        (self.folder / "go").touch()
        for process in self._started:
            process.communicate(timeout=250)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path.resolve() / "check out")
    yield made
    made.close()


def test_an_installation_is_not_repeated(checkout: Checkout) -> None:
    assert checkout.run("scripts/setup", "--bare") == (0, "", INSTALLS_BARE)
    assert checkout.run("scripts/setup", "--bare") == (0, "", "")
    assert checkout.run() == (0, "", INSTALLS)  # the test tools are still missing
    for flags in ([], ["--bare"]):
        assert checkout.run("scripts/setup", *flags) == (0, "", "")
    assert checkout.installed == [".", ".[test]"]


def test_a_changed_pyproject_or_folder_installs_again(checkout: Checkout) -> None:
    checkout.run()
    (checkout.folder / "pyproject.toml").write_text("two")  # same length
    assert checkout.run() == (0, "", INSTALLS)
    assert checkout.run() == (0, "", "")
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
    checkout.python = checkout.folder / checkout.python.name
    assert checkout.run() == (0, "", INSTALLS)
    assert checkout.run() == (0, "", "")


def test_a_failed_installation_is_repeated(checkout: Checkout) -> None:
    broken = checkout.folder / "broken"
    broken.touch()
    assert checkout.run() == (1, "", INSTALLS)
    broken.unlink()
    assert checkout.run() == (0, "", INSTALLS)
    assert checkout.run() == (0, "", "")


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_two_parallel_starts_install_once(checkout: Checkout) -> None:
    (checkout.folder / "go").unlink()
    both = [checkout.start(), checkout.start()]
    assert {first_line(process) for process in both} == {INSTALLS, WAITS}
    (checkout.folder / "go").touch()
    assert [process.communicate(timeout=250) for process in both] == [("", ""), ("", "")]
    assert [process.returncode for process in both] == [0, 0]
    assert checkout.installed == [".[test]"]


def test_a_waiting_start_installs_missing_tools(checkout: Checkout) -> None:
    (checkout.folder / "go").unlink()
    bare = checkout.start("scripts/setup", "--bare")
    assert first_line(bare) == INSTALLS_BARE
    whole = checkout.start()
    assert first_line(whole) == WAITS
    (checkout.folder / "go").touch()
    assert [p.communicate(timeout=250) for p in (bare, whole)] == [("", ""), ("", INSTALLS)]
    assert checkout.installed == [".", ".[test]"]


def test_an_installation_by_another_process_is_not_repeated(checkout: Checkout) -> None:
    """Another process installs between the first check and the lock."""
    slow = checkout.folder / "slow"
    other = f'PYTHON="{checkout.python}" scripts/setup 2> /dev/null'
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *version_info*) {other} ;; esac\n"{checkout.python}" "$@"\n'
    )
    slow.chmod(0o755)
    assert checkout.run(PYTHON=slow) == (0, "", "")
    assert checkout.installed == [".[test]"]


def test_an_existing_installation_needs_no_lock(checkout: Checkout) -> None:
    checkout.run()
    with (checkout.folder / "build" / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert checkout.run() == (0, "", "")


def test_serve_passes_arguments_and_the_working_folder(checkout: Checkout) -> None:
    output = f"{checkout.folder.parent}: serve -m a b\n"
    assert checkout.run("scripts/serve", "-m", "a b") == (0, output, INSTALLS_BARE)
    assert checkout.run("scripts/serve", "-m", "a b") == (0, output, "")


@pytest.mark.parametrize("script", ["setup", "serve"])
def test_links_to_a_script(checkout: Checkout, script: str) -> None:
    elsewhere = checkout.folder.parent / "elsewhere" / "bin"
    elsewhere.mkdir(parents=True)
    (elsewhere / "relative").symlink_to(f"../../check out/scripts/{script}")
    (elsewhere / "absolute").symlink_to(checkout.folder / "scripts" / script)
    (elsewhere / "twice").symlink_to("relative")
    (elsewhere.parent / "folder").symlink_to(checkout.folder / "scripts")
    (elsewhere / "into").symlink_to(f"../folder/{script}")
    links = ["relative", "absolute", "twice", "into", f"../folder/{script}"]
    for i, link in enumerate(links):
        status, _, errors = checkout.run(elsewhere / link)
        assert status == 0
        assert (errors == "") is (i > 0), link
    assert len(checkout.installed) == 1


def test_linux_tools_are_not_needed(checkout: Checkout) -> None:
    """As on macOS: no sha256sum, no flock, and readlink without -f."""
    tools = checkout.folder.parent / "tools"
    tools.mkdir()
    real = shutil.which("readlink")
    for name, code in (
        ("sha256sum", "exit 127"),
        ("flock", "exit 127"),
        ("readlink", f'case $1 in -*) exit 1 ;; esac; exec {real} "$@"'),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{code}\n")
        (tools / name).chmod(0o755)
    (tools / "setup").symlink_to(checkout.folder / "scripts" / "setup")
    path = f"{tools}:{os.environ['PATH']}"
    assert checkout.run(tools / "setup", PATH=path) == (0, "", INSTALLS)
    assert checkout.run("scripts/serve", PATH=path)[::2] == (0, "")
