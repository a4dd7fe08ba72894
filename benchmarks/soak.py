"""A long mixed load on real servers, and whether all is as before at its end.

    scripts/soak 30 [--model FILE] [--seed 1] [--servers router]
    scripts/soak --requests 150

Three servers of a small model, one for texts, one for embeddings, and one with two models, have few
slots and pages. First each request of a list is sent alone. Then clients send them together: of all
APIs, with slow readers, cancels, half-sent and invalid bodies, saved slots and models that are
unloaded. Replies must equal those alone. A line a minute has
counts, memory, descriptors, threads, and the longest time in which nothing ended; a time over 5 s
is explained by what the servers' threads had of the processors, and by the lateness of a sleep of
this program: if that is as long, the whole machine stood still. At the end, slots, pages,
descriptors, threads and memory must be back. The exit status is 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos_server import Server, started
from make_adapter import arch_of, named, random_matrices, write_adapter
from raw_http import ask, message
from soak_cases import MODELS, ROUTER, TEXT, VECTORS, make_cases
from soak_client import Load, run_client

from lamella.model.shipped import shipped_model

FLAGS: Final = {
    TEXT: ("-np", "3", "-c", "900", "--metrics", "--lora-init-without-apply"),
    VECTORS: ("-np", "2", "-c", "512", "--embeddings", "--metrics"),
    ROUTER: ("-np", "2", "-c", "512", "--metrics"),
}
N_CLIENTS: Final = 6
N_EACH: Final = 4  # cases of each kind; 1 in a short soak
GAP_SECONDS: Final = 5.0  # without an event: worth a line
STUCK_SECONDS: Final = 120.0  # a finding
QUIET_SECONDS: Final = 60.0  # for all to be back
MAX_FILES, MAX_THREADS = 4, 8  # more than before the load
MAX_MB: Final = 64.0  # more than after a tenth of the load


@dataclass(frozen=True)
class State:
    """What a server holds."""

    rss_mb: float
    n_files: int
    n_threads: int
    free_pages: str
    n_busy: int
    child_files: tuple[int, ...] = ()  # of the processes of a router's models

    def __str__(self) -> str:
        children = f", of its processes {self.child_files}" if self.child_files else ""
        return f"{self.rss_mb:.0f} MB, {self.n_files} files, {self.n_threads} threads{children}"


def state_of(server: Server) -> State:
    metrics = ask(server.port, message("GET", "/metrics")).raw.decode()
    busy = re.findall(
        r"^llamacpp:requests_(?:processing|deferred)(?:\{.*\})? (\S+)", metrics, re.MULTILINE
    )
    pages = re.findall(r"^lamella_kv_pages_free\{.*", metrics, re.MULTILINE)
    return State(
        server.rss_mb,
        server.n_files,
        server.n_threads,
        " ".join(sorted(pages)),
        sum(int(float(each)) for each in busy),
        tuple(sorted(server.children.values())),
    )


def run_delay(pid: int) -> float:
    """Seconds that the threads of a process could have run but waited for a processor."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        total += int(path.read_text().split()[1])
    return total / 1e9


class Watcher:
    """Prints lines about a load while it runs, and explains times without progress."""

    def __init__(self, load: Load, servers: dict[str, Server]) -> None:
        self._load, self._servers = load, servers
        self._begin = time.monotonic()
        self._in_gap: tuple[float, float] | None = None  # CPU and delay at its begin
        self._before = 0.0  # the longest gap before this one
        self._late = 0.0  # how late this program was, at most: then it is not the servers' fault
        threading.Thread(target=self._tick, daemon=True).start()

    def line(self) -> str:
        counts = self._load.counts
        states = "; ".join(f"{name} {state_of(each)}" for name, each in self._servers.items())
        gap, self._load.longest_gap = self._load.longest_gap, 0.0
        return (
            f"{(time.monotonic() - self._begin) / 60:5.1f} min: {self._load.n_requests} requests, "
            f"{counts['cancel']} cancels, {counts['compared']} compared, {counts['busy']} busy; "
            f"{states}; longest gap {gap:.1f} s, load {os.getloadavg()[0]:.1f}"
        )

    def check(self) -> None:
        """Look for servers that ended, and for a time without progress."""
        for name, server in self._servers.items():
            if server.status is not None:
                self._load.found(f"{name} ended with status {server.status}: {server.log[-500:]}")
                self._load.stop.set()
                return
        seconds = time.monotonic() - self._load.t_progress
        if seconds > STUCK_SECONDS:
            self._load.found(f"nothing ended for {seconds:.0f} s")
            self._load.stop.set()
        if seconds > 1 and self._in_gap is None:
            self._in_gap = self._times()
            self._load.longest_gap, self._before = 0.0, self._load.longest_gap
        elif seconds <= 1 and self._in_gap is not None:
            cpu, delay = (b - a for a, b in zip(self._in_gap, self._times(), strict=True))
            self._in_gap = None
            if self._load.longest_gap > GAP_SECONDS:
                print(
                    f"nothing ended for {self._load.longest_gap:.1f} s: the servers ran {cpu:.1f} "
                    f"s, and their threads waited {delay:.1f} s for a processor; a sleep of this "
                    f"program was {self._late:.1f} s late",
                    flush=True,
                )
            self._load.longest_gap = max(self._load.longest_gap, self._before)
            self._late = 0.0

    def _tick(self) -> None:
        while True:
            begin = time.monotonic()
            time.sleep(0.1)
            self._late = max(self._late, time.monotonic() - begin - 0.1)

    def _times(self) -> tuple[float, float]:
        servers = self._servers.values()
        delay = sum(run_delay(server.process.pid) for server in servers)
        return sum(server.cpu_seconds for server in servers), delay


def soak(
    load: Load,
    servers: dict[str, Server],
    seed: int,
    seconds: float,
    n_requests: int | None,
) -> None:
    """Run the load for so long or for so many requests, and look at what is left."""
    load.record_alone()
    before = {name: state_of(server) for name, server in servers.items()}
    watcher = Watcher(load, servers)
    load.t_progress = time.monotonic()
    each = None if n_requests is None else -(-n_requests // N_CLIENTS)
    clients = [
        threading.Thread(target=run_client, args=(load, seed, i, each), daemon=True)
        for i in range(N_CLIENTS)
    ]
    for client in clients:
        client.start()
    begin = time.monotonic()
    next_line = begin + 60
    warm_mb: dict[str, float] = {}
    while any(client.is_alive() for client in clients) and not load.stop.wait(0.2):
        watcher.check()
        now = time.monotonic()
        if not warm_mb and now > begin + seconds / 10:
            warm_mb = {name: server.rss_mb for name, server in servers.items()}
        if now > next_line:
            print(watcher.line(), flush=True)
            next_line += 60
        if n_requests is None and now > begin + seconds:
            load.stop.set()
    for client in clients:
        client.join(QUIET_SECONDS)
    print(watcher.line(), flush=True)
    load.wake()
    for name, server in servers.items():
        if server.status is None:
            load.findings += _left(name, server, before[name], warm_mb.get(name))


def _left(name: str, server: Server, before: State, warm_mb: float | None) -> list[str]:
    """What a server still holds after its load."""
    deadline = time.monotonic() + QUIET_SECONDS
    while (found := _more(before, now := state_of(server))) and time.monotonic() < deadline:
        time.sleep(0.2)
    if warm_mb is not None and now.rss_mb > warm_mb + MAX_MB:
        found.append(f"{now.rss_mb:.0f} MB, {warm_mb:.0f} MB after a tenth of the load")
    if "Traceback" in server.log:
        found.append(f"the log has a traceback: {server.log[-1000:]}")
    return [f"{name}: {each}" for each in found]


def _more(before: State, now: State) -> list[str]:
    found = []
    if now.n_busy:
        found.append(f"{now.n_busy} requests still run")
    if now.free_pages != before.free_pages:
        found.append(f"{now.free_pages}, before {before.free_pages}")
    if now.n_files > before.n_files + MAX_FILES:
        found.append(f"{now.n_files} descriptors, before {before.n_files}")
    if len(now.child_files) != len(before.child_files) or any(
        n > m + MAX_FILES for n, m in zip(now.child_files, before.child_files, strict=True)
    ):
        found.append(f"descriptors of processes {now.child_files}, before {before.child_files}")
    if now.n_threads > before.n_threads + MAX_THREADS:
        found.append(f"{now.n_threads} threads, before {before.n_threads}")
    return found


def _files(folder: Path, model: Path) -> dict[str, list[str]]:
    """Write what the servers need into a folder. Return the flags with files of each server."""
    adapter, models = folder / "adapter.gguf", folder / "models"
    write_adapter(adapter, arch_of(model), named(random_matrices(model, 4)))
    models.mkdir()
    for name in MODELS:
        shutil.copy(model, models / f"{name}.gguf")
    fill = [
        word
        for i, name in enumerate(("pre", "suf", "mid"))
        for word in ("--override-kv", f"tokenizer.ggml.fim_{name}_token_id=int:{300 + i}")
    ]
    text = ["-m", str(model), "--lora", str(adapter), "--slot-save-path", str(folder), *fill]
    return {
        TEXT: text,
        VECTORS: ["-m", str(model)],
        ROUTER: ["--models-dir", str(models)],
    }


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = _files(folder, Path(args.model))
        servers = {
            name: stack.enter_context(
                started([*files[name], *flags, "--no-request-log"], is_ready=False)
            )
            for name, flags in FLAGS.items()
            if name in {TEXT, *args.servers}
        }
        for server in servers.values():
            server.wait_until_ready()
        ports = {name: server.port for name, server in servers.items()}
        cases = make_cases(args.seed, 1 if args.requests else N_EACH)
        load = Load(ports, [case for case in cases if case.server in ports])
        soak(load, servers, args.seed, 60 * (args.minutes or 0), args.requests)
    for text in dict.fromkeys(load.findings):
        print(f"finding: {text}")
    print("nothing found" if not load.findings else f"{len(load.findings)} findings")
    return 1 if load.findings else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("minutes", nargs="?", type=float, metavar="MINUTES", help="of load")
    amount.add_argument("--requests", type=int, metavar="N", help="end after so many requests")
    parser.add_argument("-m", "--model", default=str(shipped_model()), help="a GGUF file")
    others = (VECTORS, ROUTER)
    parser.add_argument(
        "--servers",
        nargs="*",
        choices=(TEXT, *others),
        default=others,
        help="besides that of texts",
    )
    parser.add_argument("--seed", type=int, default=1, help="of requests and clients (1)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
