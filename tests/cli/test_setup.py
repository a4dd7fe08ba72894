"""`scripts/setup` and `scripts/serve`, with a fake Python that only records installations."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / "scripts" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


install = load_install()

# copies itself into .venv; installing Lamella, it records its arguments, waits for the file `go`,
# and fails with the text of the file `broken`
PYTHON = f"""#!/bin/sh
case "$*" in
    "-m venv --without-pip "*)
        [ ! -e no_venv ] || {{ echo "$0: No module named venv"; exit 1; }}
        mkdir -p .venv/bin
        cp "$0" .venv/bin/python ;;
    "-m pip --python "*)
        [ ! -e no_pip ] || {{ echo "$0: No module named pip"; exit 1; }} ;;
    "-m ensurepip")
        [ ! -e no_ensurepip ] || {{ echo "$0: No module named ensurepip"; exit 1; }} ;;
    "-m pip install"*--upgrade*) ;;
    "-m pip install"*)
        echo "$*" >> installed
        while [ ! -e go ]; do sleep 0.05; done
        [ ! -e broken ] || {{ cat broken; exit 1; }}
        printf '#!/bin/sh\\necho "$PWD: $*"' > .venv/bin/lamella
        chmod +x .venv/bin/lamella ;;
    *) exec {sys.executable} -S "$@" ;;
esac
"""
BEGINS = "Installing Lamella and its test tools into .venv (once, about half a minute) ...\n"
BEGINS_BARE = "Installing Lamella into .venv (once, about half a minute) ...\n"
WAITS = "Another process is installing into .venv: waiting for it ...\n"
INSTALLS = BEGINS + "Installed Lamella and its test tools in 0 s.\n"
INSTALLS_BARE = BEGINS_BARE + "Installed Lamella in 0 s.\n"


class Checkout:
    """A folder with the two scripts and the fake Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "a python"
        self._started: list[subprocess.Popen[str]] = []
        (folder / "scripts").mkdir(parents=True)
        for name in ("setup", "serve", "install.py"):
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
        out, errors = self.output(process)
        return process.returncode, out, errors

    def output(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        """stdout and stderr, as if installing took no time."""
        out, errors = process.communicate(timeout=250)
        errors = re.sub(r"^\w+ packages \.\.\.\n", "", errors, flags=re.MULTILINE)
        return out, re.sub(r" in \d+ s\.", " in 0 s.", errors)

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
    broken.write_text("ERROR: pip has a bad day\n")
    status, out, errors = checkout.run()
    assert (status, out) == (1, "")
    assert errors == (
        f"{BEGINS}Lamella is not installed: pip failed: ERROR: pip has a bad day.\n"
        f"The output of pip is in {checkout.folder / 'build' / 'setup.log'}\n"
    )
    broken.unlink()
    assert checkout.run() == (0, "", INSTALLS)
    assert checkout.run() == (0, "", "")


@pytest.mark.parametrize(
    ("output", "problem", "remedy"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...:"
            " Failed to establish a new connection: [Errno -3] Temporary failure in name "
            "resolution')': /simple/numpy/\n"
            "ERROR: No matching distribution found for numpy<3,>=2.0",
            "the package index cannot be reached",
            "HTTPS_PROXY",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on "
            "device",
            "the disk is full",
            "Free some space",
        ),
        (
            "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify "
            "failed",
            "certificate of the package index is not trusted",
            "PIP_CERT",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: "
            "'/usr/lib'",
            "cannot be written",
            "log",
        ),
        (
            "ERROR: No matching distribution found for numba<0.70,>=0.63",
            "no package numba<0.70,>=0.63 for this Python",
            "PYTHON=",
        ),
    ],
)
def test_a_problem_of_pip_is_one_sentence(
    checkout: Checkout, output: str, problem: str, remedy: str
) -> None:
    (checkout.folder / "broken").write_text(output + "\n")
    status, _, errors = checkout.run("scripts/serve")
    begins, sentence, log = errors.splitlines()
    assert (status, begins + "\n") == (1, BEGINS_BARE)
    assert sentence.startswith("Lamella is not installed: ")
    assert problem in sentence
    assert remedy in sentence
    assert output in Path(log.removeprefix("The output of pip is in ")).read_text()


def test_a_python_without_pip(checkout: Checkout) -> None:
    """Debian may leave out pip, ensurepip and venv."""
    (checkout.folder / "no_pip").touch()
    assert checkout.run() == (0, "", INSTALLS)
    for lacks in ("ensurepip", "venv"):
        shutil.rmtree(checkout.folder / ".venv", ignore_errors=True)
        (checkout.folder / f"no_{lacks}").touch()
        status, _, errors = checkout.run()
        assert status == 1
        assert f"has no {lacks}. On Debian or Ubuntu, run: apt-get install python3-venv" in errors


def test_a_wrong_python(checkout: Checkout) -> None:
    old = checkout.folder / "old"
    old.write_text("#!/bin/sh\necho 3 9\n")
    old.chmod(0o755)
    for path, problem in (("/nowhere", "does not run"), (old, "is Python 3.9")):
        status, out, errors = checkout.run(PYTHON=path)
        assert (status, out) == (1, "")
        assert errors.startswith(f"Lamella is not installed: PYTHON={path} {problem}. ")
        assert "needs Python 3.11 or newer" in errors
        assert len(errors.splitlines()) == 1
    assert checkout.installed == []


def test_a_python_other_than_that_of_the_installation(checkout: Checkout) -> None:
    checkout.run()
    newer = checkout.folder / "newer"
    newer.write_text("#!/bin/sh\necho 3 99\n")
    newer.chmod(0o755)
    (checkout.folder / "pyproject.toml").write_text("two")
    for _ in range(2):
        status, out, errors = checkout.run("scripts/serve", PYTHON=newer)
        assert (status, out) == (1, "")
        assert f"PYTHON={newer} is Python 3.99, and .venv has Python 3." in errors
        assert errors.endswith("Remove .venv and run this again, or unset PYTHON.\n")
        (checkout.folder / "pyproject.toml").write_text("one")  # it is installed
    assert "PYTHON=/nowhere does not run" in checkout.run("scripts/serve", PYTHON="/nowhere")[2]
    assert checkout.run() == (0, "", "")


def test_a_folder_that_cannot_be_written(checkout: Checkout) -> None:
    (checkout.folder / "build").touch()
    status, _, errors = checkout.run()
    assert status == 1
    assert str(checkout.folder / "build") in errors
    assert len(errors.splitlines()) == 1


def test_the_bar_moves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    monkeypatch.setattr(install, "VENV", tmp_path)
    monkeypatch.setattr(install, "LOG", tmp_path / "log")
    progress = install._Progress("downloading packages")
    seen = [progress.look()]
    for text in ("Collecting numpy>=2.0\n", "Collecting rich<16\n", "WARNING: Retrying (...\n"):
        with (tmp_path / "log").open("a") as log:
            log.write(text)
        seen.append(progress.look())
    with (tmp_path / "log").open("a") as log:
        log.write("Installing collected packages: rich, numpy\n")
    (site / "rich-15.dist-info").mkdir(parents=True)
    (site / "rich-15.dist-info" / "RECORD").touch()
    seen.append(progress.look())
    assert seen == [
        ("downloading packages", "", None),
        ("downloading packages", " (1)", None),
        ("downloading packages", " (2)", None),
        ("the package index does not answer: trying again", "", None),
        ("unpacking packages", " (1 of 2)", 0.5),
    ]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    line = install._Line()
    line.show(*seen[-1])
    line.clear()
    shown = capsys.readouterr().err
    assert "[##########          ] unpacking packages (1 of 2), 0 s" in shown
    assert shown.endswith(" \r")


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_two_parallel_starts_install_once(checkout: Checkout) -> None:
    (checkout.folder / "go").unlink()
    both = [checkout.start(), checkout.start()]
    assert {first_line(process) for process in both} == {BEGINS, WAITS}
    (checkout.folder / "go").touch()
    ends = INSTALLS.removeprefix(BEGINS)
    assert {checkout.output(process) for process in both} == {("", ends), ("", "")}
    assert [process.returncode for process in both] == [0, 0]
    assert checkout.installed == [".[test]"]


def test_a_waiting_start_installs_missing_tools(checkout: Checkout) -> None:
    (checkout.folder / "go").unlink()
    bare = checkout.start("scripts/setup", "--bare")
    assert first_line(bare) == BEGINS_BARE
    whole = checkout.start()
    assert first_line(whole) == WAITS
    (checkout.folder / "go").touch()
    ends = INSTALLS_BARE.removeprefix(BEGINS_BARE)
    assert [checkout.output(p) for p in (bare, whole)] == [("", ends), ("", INSTALLS)]
    assert checkout.installed == [".", ".[test]"]


def test_an_installation_by_another_process_is_not_repeated(checkout: Checkout) -> None:
    """Another process installs between the first check and the lock."""
    slow = checkout.folder / "slow"
    other = f'PYTHON="{checkout.python}" "{checkout.folder}/scripts/setup" 2> /dev/null'
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


def test_no_shell_and_no_tools_are_needed(checkout: Checkout) -> None:
    """As on Windows: `python scripts/serve`."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['fcntl'] = None; "
         "sys.argv = ['scripts/setup', '--bare']; sys.path.insert(0, 'scripts'); "
         "exec(open('scripts/setup').read())"],
        env={"PYTHON": str(checkout.python), "PATH": "/bin:/usr/bin"},
        cwd=checkout.folder,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert checkout.installed == ["."]
