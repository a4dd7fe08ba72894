"""A server's start: seconds from the call of the program to its health and to its first token.

    scripts/bench start model.gguf --peer ~/llama.cpp/build/bin/llama-server

Each run starts a process, waits until GET /health is 200, requests one token, reads the peak memory
and ends the process. Runs of Lamella and of the other program alternate, after one of each that is
not counted: it compiles kernels and Python's bytecode, and the file is in the system's cache.
Before each run, another process writes as much memory as a server needs: a virtual machine may have
to get memory from its host at the first write, which takes a second per GiB. `--router` also
measures a router, from POST /models/load on: it runs all the time, and has a process ready for the
model. Prints medians with the smallest and largest value; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

START_S = 300.0  # the first start may compile kernels
READY_S = 4.0  # a router's process has imported after so long
SERVER_MIB = 512  # memory besides the weights
LAMELLA = (sys.executable, "-m", "lamella.cli", "serve")
# some environments forbid to write bytecode, so that each start compiles all modules
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


class Start(NamedTuple):
    """Seconds to health and to the first token, peak memory in MiB."""

    health_s: float
    token_s: float
    peak_mib: float


def measure(program: Sequence[str], model: str, more: Sequence[str]) -> Start:
    """Start a server once."""
    _touch_memory(model)
    begin = time.perf_counter()
    with _server([*program, "-m", model, *more]) as (process, url):
        health_s = time.perf_counter() - begin
        token_s = _first_token(url, begin)
        return Start(health_s, token_s, _peak_mib(process.pid))


@contextmanager
def router(model: str, more: Sequence[str]) -> Iterator[Callable[[], Start]]:
    """A function that loads the model in a router once."""
    with TemporaryDirectory() as folder:
        Path(folder, "model.gguf").symlink_to(Path(model).resolve())
        with _server([*LAMELLA, "--models-dir", folder, *more]) as (_, url):
            yield lambda: _load(url, model)


def _load(url: str, model: str) -> Start:
    def is_in(state: str) -> bool:
        return bool(_ask(f"{url}/v1/models/model")["status"]["value"] == state)

    time.sleep(READY_S)
    _touch_memory(model)
    begin = time.perf_counter()
    _ask(f"{url}/models/load", {"model": "model"})
    _wait_until(lambda: is_in("loaded"))
    health_s = time.perf_counter() - begin
    token_s = _first_token(url, begin)
    _ask(f"{url}/models/unload", {"model": "model"})
    _wait_until(lambda: is_in("unloaded"))
    return Start(health_s, token_s, float("nan"))


@contextmanager
def _server(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server's process, when it is healthy, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until(lambda: _is_healthy(process, f"http://127.0.0.1:{port}"))
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _first_token(url: str, begin: float) -> float:
    """Seconds from `begin` to the first token of a request."""
    body = {"model": "model", "prompt": "Once upon a time", "n_predict": 1}
    _ask(f"{url}/completion", body)
    return time.perf_counter() - begin


def _ask(url: str, body: object = None) -> Any:
    """The reply to a GET, or to a POST of a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_S) as reply:
        return json.load(reply)


def _touch_memory(model: str) -> None:
    """Write as many bytes as a server needs, in another process."""
    n_bytes = (SERVER_MIB << 20) + 2 * os.stat(model).st_size
    program = "import sys, numpy; numpy.ones(int(sys.argv[1]), numpy.uint8)"
    subprocess.run([sys.executable, "-c", program, str(n_bytes)], check=True)


def _is_healthy(process: subprocess.Popen[bytes], url: str) -> bool:
    if process.poll() is not None:
        sys.exit(f"the server ended with status {process.returncode}")
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=START_S) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def _wait_until(is_true: Callable[[], bool]) -> None:
    begin = time.perf_counter()
    while not is_true():
        if time.perf_counter() - begin > START_S:
            sys.exit(f"no answer in {START_S:.0f} s")
        time.sleep(0.005)


def _peak_mib(pid: int) -> float:
    """The most memory that a process had, as Linux counts it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench start", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--peer", help="another server with llama-server's flags and routes")
    parser.add_argument("--router", action="store_true", help="also loads in a router")
    parser.add_argument("-r", type=int, default=5, help="runs of each that count (%(default)s)")
    parser.add_argument("more", nargs="*", help="flags for all servers, after --")
    args = parser.parse_args()
    programs = {"lamella": LAMELLA} | ({"peer": (args.peer,)} if args.peer else {})
    with ExitStack() as stack:
        runs: dict[str, Callable[[], Start]] = {
            name: partial(measure, program, args.model, args.more)
            for name, program in programs.items()
        }
        if args.router:
            runs["router"] = stack.enter_context(router(args.model, args.more))
        starts: dict[str, list[Start]] = {name: [] for name in runs}
        for i in range(args.r + 1):
            for name, run in runs.items():
                start = run()
                if i:
                    starts[name].append(start)
    result: dict[str, dict[str, list[float]]] = {}
    print(f"{'':10}{'health s':>22}{'first token s':>22}{'peak MiB':>22}")
    for name, found in starts.items():
        columns = {
            field: sorted(values)
            for field, values in zip(Start._fields, zip(*found, strict=True), strict=True)
        }
        cells = [f"{statistics.median(v):.2f} ({v[0]:.2f}-{v[-1]:.2f})" for v in columns.values()]
        print(f"{name:10}" + "".join(f"{cell:>22}" for cell in cells))
        result[name] = columns
    print(json.dumps(result))


if __name__ == "__main__":
    main()
