"""What all fuzzers share: inputs by number, a child process that may die, limits, and the report.

A target makes each input from a number alone, and tries it in the child. Findings are an end of the
child, no result in time, an exception that is not one of ours, too much time or memory, and what
the target itself finds. The number makes the input again. Tested by tests/model/test_fuzz.py.
"""

from __future__ import annotations

import json
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from lamella.base.process_limits import used_bytes

CORPUS: Final = Path(__file__).resolve().parents[1] / "tests" / "data" / "corpus"
HANG_SECONDS: Final = 60.0  # of an input
START_SECONDS: Final = 280.0
PEAK_BYTES: Final = 256 << 20


class Outcome(NamedTuple):
    """What became of an input."""

    what: str
    finding: str = ""
    seconds: float = 0.0


class Target(Protocol):
    """What is fuzzed. It is made and used in the child."""

    def try_input(self, number: int) -> Outcome:
        """Make the input with this number, and try it."""

    def show(self, number: int) -> str:
        """The input as text that a person can read."""


class Fuzzer:
    """Gives inputs to a child process, and starts another when one ends."""

    def __init__(self, make: Callable[[], Target]) -> None:
        """
        Args:
            make: makes the target, in the child: a function or class of a module.
        """
        self._make = make
        self._context = get_context("spawn")
        self._start()

    def _start(self) -> None:
        self._pipe, other = self._context.Pipe()
        self.process = self._context.Process(
            target=_child, args=(other, self._make, PEAK_BYTES), daemon=True
        )
        self.process.start()
        other.close()
        if not self._pipe.poll(START_SECONDS) or not self._pipe.recv():
            raise RuntimeError(f"the target does not start within {START_SECONDS:g} s")

    def try_input(self, number: int) -> Outcome:
        """Try an input, and kill the child if it takes too long."""
        try:
            self._pipe.send(number)
            if self._pipe.poll(HANG_SECONDS):
                outcome: Outcome = self._pipe.recv()
                return outcome
            outcome = Outcome("hang", f"no result after {HANG_SECONDS} s")
        except (EOFError, OSError):
            self.process.join()
            outcome = Outcome("crash", f"the process ended with {self.process.exitcode}")
        self.close()
        self._start()
        return outcome

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def _child(pipe: Connection, make: Callable[[], Target], n_bytes: int) -> None:
    warnings.simplefilter("ignore")
    target = make()
    pipe.send(True)
    while True:
        number = pipe.recv()
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")  # the peak of memory starts here
        before = used_bytes("VmRSS")
        try:
            outcome = target.try_input(number)
        except Exception as e:
            outcome = Outcome("exception", f"{type(e).__name__}: {e}"[:500])
        peak = used_bytes("VmHWM") - before
        if peak > n_bytes and not outcome.finding:
            outcome = Outcome("large", f"{peak >> 20} MiB of memory", outcome.seconds)
        pipe.send(outcome)


def fuzz(make: Callable[[], Target], numbers: Iterator[int], seconds: float) -> dict[str, object]:
    """Try inputs until the numbers or the seconds end. Print findings. Return the result."""
    fuzzer, counts, n_findings, slowest = Fuzzer(make), Counter[str](), 0, 0.0
    end = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > end:
            break
        outcome = fuzzer.try_input(number)
        counts[outcome.what] += 1
        slowest = max(slowest, outcome.seconds)
        if outcome.finding:
            n_findings += 1
            print(f"{number}: {outcome.what}: {outcome.finding}", flush=True)
    fuzzer.close()
    for what, n in counts.most_common():
        print(f"{n:8} {what}")
    n_inputs = sum(counts.values())
    return {"inputs": n_inputs, "findings": n_findings, "slowest_s": round(slowest, 3)}


def run(make: Callable[[], Target], seconds: float, seed: int, only: int | None = None) -> int:
    """Fuzz a target, or try one input again and show it. Return the number of findings."""
    if only is not None:
        print(make().show(only))
    numbers = count(seed << 32) if only is None else iter([only])
    result = fuzz(make, numbers, seconds)
    print(json.dumps({**result, "seed": seed}), flush=True)
    return int(str(result["findings"]))


def corpus(name: str) -> list[bytes]:
    """The stored inputs of a target, in one order."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def mutated(rng: random.Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """One of the inputs after a few random edits, with parts of others."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((0, 1, 1, 2, 2, 4, 8))):
        begin = rng.randint(0, len(data))
        end = min(len(data), begin + rng.choice((0, 1, 4, 8, 40)))
        data[begin:end] = _edit(rng, bytes(data[begin:end]), seeds, words)
    return bytes(data)


def _edit(rng: random.Random, part: bytes, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    match rng.randrange(7):
        case 0:
            return b""
        case 1:
            return part * rng.choice((2, 3, 50, 2000))
        case 2:
            other = rng.choice(seeds)
            begin = rng.randint(0, len(other))
            return other[begin : begin + rng.choice((1, 8, 80, 800))]
        case 3:
            return bytes(byte ^ 1 << rng.randrange(8) for byte in part)
        case 4:
            return rng.randbytes(len(part))
        case 5:
            return bytes([rng.choice((0, 1, 9, 10, 13, 32, 34, 47, 92, 127, 128, 255))])
    return rng.choice(words)
