"""A server's start: seconds from the call of the program to its health and to its first token.

    scripts/bench start model.gguf --peer ~/llama.cpp/build/bin/llama-server

Each run starts a process, waits until GET /health is 200, requests one token, reads the peak memory
and ends the process. Runs of Lamella and of the other program alternate, after one of each that is
not counted: it compiles kernels and Python's bytecode, and the file is in the system's cache.
Before each run, another process writes as much memory as a server needs: a virtual machine may have
to get memory from its host at the first write, which takes a second per GiB. Prints medians with
the smallest and largest value; the last line is JSON.
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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

START_S = 300.0  # the first start may compile kernels
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    _touch_memory((SERVER_MIB << 20) + 2 * os.stat(model).st_size)
    begin = time.perf_counter()
    process = subprocess.Popen(
        [*program, "-m", model, "--port", str(port), *more],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for_health(process, url, begin)
        health_s = time.perf_counter() - begin
        body = json.dumps({"prompt": "Once upon a time", "n_predict": 1}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/completion", body, headers)
        with urllib.request.urlopen(request, timeout=START_S) as reply:
            reply.read()
        token_s = time.perf_counter() - begin
        return Start(health_s, token_s, _peak_mib(process.pid))
    finally:
        process.terminate()
        process.wait(30)


def _touch_memory(n_bytes: int) -> None:
    """Write so many bytes in another process."""
    program = "import sys, numpy; numpy.ones(int(sys.argv[1]), numpy.uint8)"
    subprocess.run([sys.executable, "-c", program, str(n_bytes)], check=True)


def _wait_for_health(process: subprocess.Popen[bytes], url: str, begin: float) -> None:
    while time.perf_counter() - begin < START_S:
        if process.poll() is not None:
            sys.exit(f"the server ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=START_S) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.005)
    sys.exit(f"no answer in {START_S:.0f} s")


def _peak_mib(pid: int) -> float:
    """The most memory that a process had, as Linux counts it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench start", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--peer", help="another server with llama-server's flags and routes")
    parser.add_argument("-r", type=int, default=5, help="runs of each that count (%(default)s)")
    parser.add_argument("more", nargs="*", help="flags for all servers, after --")
    args = parser.parse_args()
    programs = {"lamella": list(LAMELLA)} | ({"peer": [args.peer]} if args.peer else {})
    starts: dict[str, list[Start]] = {name: [] for name in programs}
    for i in range(args.r + 1):
        for name, program in programs.items():
            start = measure(program, args.model, args.more)
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
