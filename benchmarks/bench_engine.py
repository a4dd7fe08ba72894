"""Speed of the engine alone, without HTTP: tokens per second, and Python's time per token.

    scripts/bench engine MODEL [--streams 32] [--tokens 100] [--threads N] [--device CUDA0]
                               [--repeat 5] [--no-guesses] [--profile]

Submits `--streams` generations at once, with sinks that make text, and waits for their ends. The
engine's thread computes them; "outside" is its time outside of the processor's kernels: Python,
sampling and copies. Requests are those of bench_sampling.py that servers see: defaults and greedy.
With `--no-guesses`, every step computes one token of each stream. `--profile` prints Python's
functions by their time instead. The last line is JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from lamella.base.errors import LamellaError
from lamella.kernels.cpu.pool import ThreadPool
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.job import Job, Result
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import OpenParams, RequestParams
from lamella.runtime.text import TextSink

REQUESTS: Final[dict[str, dict[str, Any]]] = {"default": {}, "greedy": {"temperature": 0}}


class Run(NamedTuple):
    """One run. Seconds: in all, of the engine's processor time, and in kernels by the clock."""

    n_tokens: int
    n_steps: int
    seconds: float
    kernels: float

    @property
    def speed(self) -> float:
        return self.n_tokens / self.seconds

    @property
    def outside_us(self) -> float:
        """Microseconds of the engine's thread outside of kernels, per token."""
        return 1e6 * (self.seconds - self.kernels) / self.n_tokens


class KernelClock:
    """Sums the time of calls of `ThreadPool.run`, with the interpreter lock released."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        before = ThreadPool.run

        def run(*args: Any, **kwargs: Any) -> None:
            begin = time.perf_counter()
            before(*args, **kwargs)
            self.seconds += time.perf_counter() - begin

        ThreadPool.run = run  # type: ignore[method-assign]
        try:
            yield
        finally:
            ThreadPool.run = before  # type: ignore[method-assign]


class Waiter:
    """Counts the ends of generations. `failed` is the first error."""

    def __init__(self, n: int) -> None:
        self.failed: LamellaError | None = None
        self.n_tokens = 0
        self._left = n
        self._done = threading.Event()

    def end(self, result: Result) -> None:
        self.n_tokens += result.n_predicted
        self._count()

    def error(self, error: LamellaError) -> None:
        self.failed = self.failed or error
        self._count()

    def wait(self) -> None:
        self._done.wait()
        if self.failed is not None:
            raise self.failed

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._done.set()


def run(instance: Instance, request: dict[str, Any], n_streams: int, n_tokens: int) -> Run:
    """Generate `n_tokens` tokens in each of `n_streams` streams."""
    engine, clock, waiter = instance.engine, KernelClock(), Waiter(n_streams)
    before = engine.counters.n_steps
    params = [
        RequestParams.make({"n_predict": n_tokens, "seed": i, **request}) for i in range(n_streams)
    ]
    with clock.running():
        engine.call(lambda _: None)
        begin = time.perf_counter()
        submit(engine, params, waiter)
        waiter.wait()
        seconds = time.perf_counter() - begin
    return Run(waiter.n_tokens, engine.counters.n_steps - before, seconds, clock.seconds)


def submit(engine: Engine, params: list[RequestParams], waiter: Waiter) -> None:
    """Submit a job of a short prompt for each of `params`."""
    texts: list[list[str]] = [[] for _ in params]
    for i, each in enumerate(params):
        sink = TextSink(
            engine.vocab,
            emit=lambda piece, out=texts[i]: out.append(piece.text),  # type: ignore[misc]
            end=waiter.end,
            error=waiter.error,
        )
        engine.submit(Job(prompt=(1, 300 + i, 400), params=each, sink=sink))


def profile(instance: Instance, request: dict[str, Any], n_streams: int, n_tokens: int) -> None:
    """Print the functions of the engine's thread by their own time."""
    profiler, n_steps = cProfile.Profile(), n_streams * n_tokens
    instance.engine.call(lambda _: profiler.enable())
    run(instance, request, n_streams, n_tokens)
    instance.engine.call(lambda _: profiler.disable())
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
    print(f"{n_steps} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="none", help="the device of all layers; none: the CPU")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--no-guesses", action="store_true", help="no speculative decoding")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    options = {"path": args.model, "n_parallel": args.streams, "devices": (args.device,)}
    n_ctx = args.streams * (args.tokens + 64)
    if args.threads:
        options["n_threads"] = args.threads
    results: dict[str, Any] = {}
    with open_instance(OpenParams.make({**options, "n_ctx": n_ctx})) as instance:
        for name, kind in REQUESTS.items():
            request = kind | ({"spec_type": "none"} if args.no_guesses else {})
            run(instance, request, args.streams, args.tokens)  # builds the graphs
            if args.profile:
                profile(instance, request, args.streams, args.tokens)
                continue
            runs = [run(instance, request, args.streams, args.tokens) for _ in range(args.repeat)]
            speed = statistics.median(each.speed for each in runs)
            outside = statistics.median(each.outside_us for each in runs)
            step = 1e6 * statistics.median(each.seconds / each.n_steps for each in runs)
            print(f"{name:10} {speed:8.0f} tokens/s, step {step:7.0f} us, outside {outside:6.1f}")
            results[name] = {"tokens_s": round(speed), "outside_us": round(outside, 1)}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
