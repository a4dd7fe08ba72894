"""Installs Lamella into .venv, for `scripts/setup` and `scripts/serve`.

Runs on every system and on Python 3.7, so that it can name a Python that is too old. A problem
becomes one sentence with a remedy; the output of pip is in build/setup.log.
Tested by tests/cli/test_setup.py.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parent.parent
WINDOWS = os.name == "nt"
VENV = ROOT / ".venv"
PROGRAMS = VENV / ("Scripts" if WINDOWS else "bin")
PYTHON = str(PROGRAMS / ("python.exe" if WINDOWS else "python"))
STAMP = VENV / "installed-for"
LOG = ROOT / "build" / "setup.log"
LOCK = ROOT / "build" / "setup.lock"

BARE, TOOLS = ".", ".[test]"  # what pip installs
OLDEST = (3, 11)
NAMES = ("python3", "python", *(f"python3.{n}" for n in range(OLDEST[1], 20)))
TICK_S = 0.1
QUIET_S = 2.0  # without a terminal, shorter steps are not reported

# what to look for in the output of pip; the problem, and what to do
PROBLEMS = (
    (
        r"No space left on device|Errno 28\b",
        "the disk is full: {root} needs 500 MB, and pip's cache and temporary files 300 MB",
        "Free some space and run this again.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "the certificate of the package index is not trusted",
        "If a proxy has a certificate of its own, set PIP_CERT=/path/to/certificate.pem.",
    ),
    (
        r"ProxyError|Tunnel connection failed",
        "the proxy refuses the connection to the package index",
        "Check HTTPS_PROXY.",
    ),
    (
        r"NewConnectionError|NameResolutionError|Timeout(?:Error|\b)|Network is unreachable|"
        r"Temporary failure in name resolution|ConnectionReset|RemoteDisconnected",
        "the package index cannot be reached, and Lamella's packages (100 MB) come from there",
        "Connect to the network and run this again; set HTTPS_PROXY for a proxy or PIP_INDEX_URL "
        "for a mirror.",
    ),
    (
        r"Read-only file system|Permission denied|Errno (?:13|30)\b",
        "a file cannot be written",
        "The log names it.",
    ),
    (
        r"No matching distribution found for (\S+)",
        "there is no package {found} for this Python and this machine",
        "Try another Python: set PYTHON=/path/to/python3.12.",
    ),
)


class SetupError(Exception):
    """A problem, and what to do."""


# --- the commands ---


def setup(args: Sequence[str]) -> int:
    """Install Lamella, and its test tools unless `args` is --bare. Return the exit status."""
    if list(args) not in ([], ["--bare"]):
        _print(f"scripts/setup: unknown argument {args[0]}; the only one is --bare")
        return 2
    return _reported(BARE if args else TOOLS)


def serve(args: Sequence[str]) -> int:
    """Install Lamella if needed, then run `lamella serve`. Return the exit status."""
    status = _reported(BARE)
    if status != 0:
        return status
    command = [str(PROGRAMS / "lamella"), "serve", *args]
    if not WINDOWS:
        os.execv(command[0], command)
    return subprocess.call(command)


def _reported(what: str) -> int:
    """Install `what`, and report a problem on stderr. Return the exit status."""
    try:
        install(what)
    except SetupError as e:
        problem = str(e)
    except OSError as e:
        problem = _explain(e)
    except KeyboardInterrupt:
        _print("")
        return 130
    else:
        return 0
    _print(f"Lamella is not installed: {problem}")
    return 1


def _explain(e: OSError) -> str:
    if e.errno == errno.ENOSPC:
        _, problem, remedy = PROBLEMS[0]
        return f"{problem.format(root=ROOT)}. {remedy}"
    where = e.filename or ROOT
    if e.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return (
            f"{where} cannot be written ({e.strerror}). "
            "Copy the checkout to a folder of your own and run this there."
        )
    return f"{e.strerror or e}: {where}."


# --- installing ---


def install(what: str) -> None:
    """Install `what` into .venv unless it is there. One process installs, others wait.

    Raises:
        SetupError: a problem with a remedy. OSError: a file cannot be written.
    """
    is_done = _is_done(what)
    _check_version()
    if is_done:
        return
    python = find_python()
    with _one_process():
        if _is_done(what):  # the other process installed it
            return
        about = "Lamella" if what == BARE else "Lamella and its test tools"
        _print(f"Installing {about} into .venv (once, about half a minute) ...")
        begin = time.monotonic()
        _install(python, what)
        _print(f"Installed {about} in {time.monotonic() - begin:.0f} s.")


def _install(python: str, what: str) -> None:
    LOG.write_bytes(b"")
    folder = _stamped_folder()
    with suppress(FileNotFoundError):
        STAMP.unlink()  # an interrupted installation starts again
    if folder != str(ROOT):
        _make_venv(python)
    if _pip("--editable", what) != 0:
        raise _failed(PYTHON, "pip")
    STAMP.write_text(_stamp(what), encoding="utf-8")


def _is_done(what: str) -> bool:
    """True if `what` is installed. The test tools include Lamella."""
    return _version(PYTHON) is not None and _read(STAMP) in (_stamp(what), _stamp(TOOLS))


def _stamp(what: str) -> str:
    """The text of a complete installation. Programs in .venv name their folder, so that a moved
    checkout needs a new .venv."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    return f"{digest[:16]} 0 {ROOT} {what}\n"


def _stamped_folder() -> str:
    """The folder for which .venv was made; empty if .venv is incomplete or does not work."""
    parts = _read(STAMP).strip().split(" ", 2)
    return parts[2].rpartition(" ")[0] if len(parts) == 3 and _version(PYTHON) else ""


@contextmanager
def _one_process() -> Iterator[None]:
    """Hold the lock of installations. On a file system or a system without locks, both install."""
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("a") as lock:
        with suppress(OSError, AttributeError):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _print("Another process is installing into .venv: waiting for it ...")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- Python and pip ---


def find_python() -> str:
    """The Python for .venv: PYTHON, or else the first one that is new enough.

    Raises:
        SetupError: none is, or PYTHON does not work.
    """
    needed = "Lamella needs Python {}.{} or newer".format(*OLDEST)
    wanted = os.environ.get("PYTHON", "")
    if wanted:
        version = _version(wanted)
        if version is None:
            raise SetupError(f"PYTHON={wanted} does not run. {needed}: set PYTHON to its path.")
        if version < OLDEST:
            raise SetupError("PYTHON={} is Python {}.{}. {}.".format(wanted, *version, needed))
        return wanted
    found = [sys.executable, *filter(None, map(shutil.which, NAMES))]
    for python in found:
        if (_version(python) or (0, 0)) >= OLDEST:
            return python
    raise SetupError(
        "{}, and {} is Python {}.{}. Install a newer one, or set PYTHON=/path/to/python.".format(
            needed, sys.executable, *sys.version_info
        )
    )


def _check_version() -> None:
    """Raises SetupError if PYTHON does not work, or .venv has another version."""
    wanted = os.environ.get("PYTHON", "")
    if not wanted:
        return
    find_python()
    there = _version(PYTHON) if _stamped_folder() == str(ROOT) else None
    version = _version(wanted)
    if there is not None and version is not None and there != version:
        raise SetupError(
            "PYTHON={} is Python {}.{}, and .venv has Python {}.{}. Remove .venv and run this "
            "again, or unset PYTHON.".format(wanted, *version, *there)
        )


def _version(python: str) -> tuple[int, int] | None:
    """The version of a Python; None if it does not run."""
    code = "import sys; print(*sys.version_info[:2])"
    with suppress(OSError, ValueError):
        done = subprocess.run(
            [python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
        major, minor = map(int, done.stdout.split())
        return major, minor
    return None


def _make_venv(python: str) -> None:
    """Make .venv with the newest pip: it needs half the time of pip 23.

    Raises:
        SetupError: Python lacks modules, or pip failed.
    """
    shutil.rmtree(VENV, ignore_errors=True)
    # the system's pip installs another pip faster than ensurepip does; Debian may have neither
    if _run("making .venv", python, "-m", "venv", "--without-pip", str(VENV)) != 0:
        raise _failed(python, "venv")
    if _pip("--python", PYTHON, "pip", run_by=python) == 0:
        return
    if _known_problem() or _run("installing pip", PYTHON, "-m", "ensurepip") != 0:
        raise _failed(python, "ensurepip")
    _pip("--upgrade", "pip")


def _pip(*args: str, run_by: str = PYTHON) -> int:
    """`pip install`. Return its exit status."""
    before = args[:2] if args[0] == "--python" else ()
    options = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")
    command = (run_by, "-m", "pip", *before, "install", *options, *args[len(before) :])
    return _run("downloading packages", *command)


def _failed(python: str, module: str) -> SetupError:
    """The error for the last program that failed. The log has its output."""
    if re.search(rf"No module named '?{module}\b", _read(LOG)):
        return SetupError(
            f"{python} has no {module}. On Debian or Ubuntu, run: apt-get install python3-venv"
        )
    problem = _known_problem() or _last_error()
    return SetupError(f"{problem}\nThe output of pip is in {LOG}")


def _known_problem() -> str | None:
    """The problem that the log shows, if it is a known one."""
    for pattern, problem, remedy in PROBLEMS:
        match = re.search(pattern, _read(LOG))
        if match:
            return f"{problem.format(root=ROOT, found=match[match.lastindex or 0])}. {remedy}"
    return None


def _last_error() -> str:
    lines = [line for line in _read(LOG).splitlines() if line.strip()] or ["no output"]
    errors = [line for line in lines if re.match("error:", line, re.IGNORECASE)] or lines
    return f"pip failed: {errors[-1]}."


# --- running programs, with a line that moves ---


def _run(what: str, *command: str) -> int:
    """Run a program with its output in the log. Return its exit status."""
    # modules that nothing imports need no bytecode; the others are compiled by their first import
    environment = {"PIP_RETRIES": "3", **os.environ, "PIP_COMPILE": "0"}
    progress, line = _Progress(what), _Line()
    with LOG.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=str(ROOT),
        )
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(TICK_S)
            line.show(*progress.look())
    finally:
        line.clear()
        process.kill()
        process.wait()


class _Progress:
    """What a program does, from its output: `what`, or the step of pip."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._n_read = len(_read(LOG))
        self._n_there = _n_installed()

    def look(self) -> tuple[str, str, float | None]:
        """The step, how many packages it has done, and this as a fraction if it is known."""
        text = _read(LOG)[self._n_read :]
        if text.rstrip().rpartition("\n")[2].startswith("WARNING: Retrying"):
            return "the package index does not answer: trying again", "", None
        match = re.search(r"^Installing collected packages: (.*)", text, re.MULTILINE)
        if match is None:
            n = len(set(re.findall(r"^Collecting ([\w.-]+)", text, re.MULTILINE)))
            return self._what, f" ({n})" if n else "", None
        total = match[1].count(",") + 1
        done = min(total, _n_installed() - self._n_there)
        return "unpacking packages", f" ({done} of {total})", done / total


def _n_installed() -> int:
    site = "Lib/site-packages" if WINDOWS else "lib/python*/site-packages"
    return sum(1 for _ in VENV.glob(f"{site}/*.dist-info/RECORD"))


class _Line:
    """A line that moves in a terminal. Elsewhere, a line for each step that takes long."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._width = 0
        self._seen: set[str] = set()

    def show(self, step: str, detail: str, part: float | None) -> None:
        seconds = time.monotonic() - self._begin
        if sys.stderr.isatty():
            mark = "|/-\\"[int(seconds / TICK_S) % 4]
            bar = "" if part is None else f"[{'#' * int(20 * part):20}] "
            text = f"{mark} {bar}{step}{detail}, {seconds:.0f} s"
            text = text[: shutil.get_terminal_size().columns - 1]
            _write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif seconds > QUIET_S and step not in self._seen:
            _write(f"{step} ...\n")
            self._seen.add(step)

    def clear(self) -> None:
        if self._width:
            _write("\r" + " " * self._width + "\r")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _read(path: Path) -> str:
    """A file's text; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _print(text: str) -> None:
    _write(f"{text}\n")
