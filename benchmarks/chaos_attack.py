"""Attack a server with everything at once, and say what honest clients notice.

    scripts/chaos attack [--model FILE] [--seconds 15] [NAME...]

A real server (`lamella serve`) has two honest clients at 127.0.0.1: one streams long greedy texts,
one asks for /health every 50 ms on new connections, however late the answers are. Then processes at
nice 19 and 127.0.0.2 attack with a key of their own, all or only those NAMEd; the clock starts once
they are ready. The table has the speed of the stream and the delays of /health before, during and
after, and the share of a core that the server had; then what became of the attackers' requests. The
last line is JSON.

The exit status is 1 if the server ended, or if the stream had less than half its speed, or if the
99th percentile of /health was over 100 ms. Others that use the machine change all of these numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final

from chaos_attacks import ATTACKS, attack
from chaos_honest import Record, health, stream
from chaos_server import Server, started

from lamella.model.shipped import shipped_model

HONEST, OTHER = "honest", "mallory"  # API keys
N_PARALLEL: Final = 4
N_FILES: Final = 1024  # the server's limit of descriptors
ALONE_SECONDS: Final = 6.0
READY_SECONDS: Final = 60.0
RESULT_SECONDS: Final = 30.0
MIN_RATIO: Final = 0.5
MAX_HEALTH_MS: Final = 100.0

_spawn = get_context("spawn")


class Roles:
    """Processes that run a function until they are told to stop, and then send what they saw."""

    def __init__(self) -> None:
        self.stop, self.begin = _spawn.Event(), _spawn.Event()
        self._results: dict[str, Connection] = {}
        self._processes: list[Any] = []

    def start(self, name: str, target: Any, *args: object) -> None:
        """Call `target(*args, result)` in a process of its own."""
        self._results[name], result = _spawn.Pipe(duplex=False)
        process = _spawn.Process(target=target, args=(*args, result), daemon=True)
        process.start()
        result.close()
        self._processes.append(process)

    def wait_until_ready(self) -> None:
        """Wait for the first message of each. Not forever: what they attack may not answer."""
        deadline = time.monotonic() + READY_SECONDS
        for name, result in self._results.items():
            if not result.poll(max(0.0, deadline - time.monotonic())):
                print(f"{name}: not ready after {READY_SECONDS:.0f} s")
                continue
            with suppress(EOFError):
                result.recv()

    def ended(self) -> dict[str, Any]:
        """Stop all. Return what each has seen; a process that does not answer is left out."""
        self.stop.set()
        self.begin.set()
        deadline = time.monotonic() + RESULT_SECONDS
        found = {}
        for name, result in self._results.items():
            with suppress(EOFError):  # the process failed
                if result.poll(max(0.0, deadline - time.monotonic())):
                    found[name] = result.recv()
        self.kill()
        return found

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


@contextmanager
def roles() -> Iterator[Roles]:
    found = Roles()
    try:
        yield found
    finally:
        found.kill()


@dataclass(frozen=True)
class Phase:
    """What honest clients saw for a while."""

    tokens_per_second: float
    pause_ms: float  # the longest time without a token
    health_ms: Sequence[float]
    failures: Counter[str]

    def health_at(self, q: float) -> float:
        times = sorted(self.health_ms)
        return times[min(int(q * len(times)), len(times) - 1)] if times else float("nan")


def phase_of(
    streamed: Sequence[Record], asked: Sequence[Record], begin: float, end: float
) -> Phase:
    """What arrived between two times."""
    tokens = [record for record in streamed if begin <= record.time < end]
    answers = [record for record in asked if begin <= record.time < end]
    arrivals = [begin, *(record.time for record in tokens if record.value), end]
    failures = Counter(
        f"{name} {record.status}"
        for name, records in (("stream", tokens), ("health", answers))
        for record in records
        if record.status != "200"
    )
    return Phase(
        tokens_per_second=sum(record.value for record in tokens) / (end - begin),
        pause_ms=1e3 * max(b - a for a, b in pairwise(arrivals)),
        health_ms=[1e3 * record.value for record in answers],
        failures=failures,
    )


@dataclass(frozen=True)
class Measured:
    phases: dict[str, Phase]
    counts: dict[str, dict[str, int]]
    peak_mb: dict[str, float]
    cpu: dict[str, float]  # the server's share of one core
    log_bytes: int


def measure(server: Server, names: Sequence[str], seconds: float, n_predict: int) -> Measured:
    """Watch honest clients before, during and after an attack."""
    windows: dict[str, tuple[float, float]] = {}
    peaks: dict[str, float] = {}
    cpu: dict[str, float] = {}

    def watch(name: str, n_seconds: float) -> None:
        before, begin = server.cpu_seconds, time.monotonic()
        time.sleep(n_seconds)
        windows[name] = (begin, time.monotonic())
        if server.status is not None:
            raise SystemExit(f"the server ended with status {server.status}: {server.log[-2000:]}")
        peaks[name] = server.peak_mb
        cpu[name] = (server.cpu_seconds - before) / (time.monotonic() - begin)

    with roles() as honest, roles() as attackers:
        honest.start("stream", stream, server.port, HONEST, n_predict, honest.stop)
        honest.start("health", health, server.port, honest.stop)
        time.sleep(1 + seconds / 10)  # first graphs
        watch("before", ALONE_SECONDS)
        for name in names:
            gates = (attackers.begin, attackers.stop)
            attackers.start(name, attack, name, server.port, OTHER, *gates)
        attackers.wait_until_ready()
        attackers.begin.set()
        watch("attacked", seconds)
        counts = attackers.ended()
        time.sleep(3)
        watch("after", ALONE_SECONDS)
        n_bytes = len(server.log)
        seen = honest.ended()
    streamed, asked = (seen.get(name, []) for name in ("stream", "health"))
    phases = {name: phase_of(streamed, asked, *window) for name, window in windows.items()}
    return Measured(phases, counts, peaks, cpu, n_bytes)


def print_report(found: Measured) -> dict[str, Any]:
    """Print the tables. Return the numbers of the last line."""
    print(
        f"{'':10}{'tok/s':>8}{'longest pause':>16}{'/health p50':>14}{'p99':>11}{'max':>12}"
        f"{'CPU':>8}{'peak memory':>14}"
    )
    for name, phase in found.phases.items():
        p50, p99, most = (phase.health_at(q) for q in (0.5, 0.99, 1.0))
        print(
            f"{name:10}{phase.tokens_per_second:8.0f}{phase.pause_ms:13.0f} ms{p50:11.1f} ms"
            f"{p99:8.1f} ms{most:9.1f} ms{found.cpu[name]:8.0%}{found.peak_mb[name]:11.0f} MB"
        )
        for failure, n in phase.failures.items():
            print(f"{'':10}{n} x {failure}")
    print()
    for name in found.counts:
        counts = ", ".join(f"{key}: {n}" for key, n in sorted(found.counts[name].items()))
        print(f"{name:16}{counts or 'no reply'}")
    attacked = found.phases["attacked"]
    alone = max(found.phases[name].tokens_per_second for name in ("before", "after"))
    result = {
        "pace": round(attacked.tokens_per_second / max(alone, 1e-9), 3),
        "health_p99_ms": round(attacked.health_at(0.99), 1),
        "health_max_ms": round(attacked.health_at(1.0), 1),
        "failures": sum(attacked.failures.values()),
        "peak_mb": round(found.peak_mb["attacked"]),
        "log_kb": round(found.log_bytes / 1e3),
        "load": round(os.getloadavg()[0], 1),
    }
    print(f"\n{json.dumps(result)}")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    flags = ["-m", args.model, "-np", str(N_PARALLEL), "-c", str(args.ctx * N_PARALLEL)]
    flags += ["--api-key", f"{HONEST},{OTHER}", *args.flags.split()]
    with started(flags, n_files=N_FILES) as server:
        found = measure(server, args.names or list(ATTACKS), args.seconds, args.ctx - 100)
        result = print_report(found)
    is_fast = result["pace"] >= MIN_RATIO and result["health_p99_ms"] <= MAX_HEALTH_MS
    return 0 if is_fast else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    attacks = "\n".join(f"  {name:16}{each.text}" for name, each in ATTACKS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/chaos attack",
        description=f"{(__doc__ or '').strip()}\n\nattacks:\n{attacks}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks (all)")
    parser.add_argument("-m", "--model", default=str(shipped_model()), help="a GGUF file")
    parser.add_argument("--seconds", type=float, default=15.0, help="of the attack (15)")
    parser.add_argument("--ctx", type=int, default=4096, help="tokens of a request (4096)")
    parser.add_argument("--flags", default="", help="more flags of lamella serve, in one argument")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.names if name not in ATTACKS]:
        parser.error(f"unknown attack {unknown[0]!r}: must be one of {', '.join(ATTACKS)}")
    return args


if __name__ == "__main__":
    raise SystemExit(main())
