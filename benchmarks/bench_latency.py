"""Latency under load: times between tokens of streams while long prompts arrive.

    scripts/bench latency MODEL [--max-itl=-1,0] [--streams 8] [--prompt 4096] [--seconds 5] [-r 3]

Opens the model once for each limit of `--max-itl`. They take turns: streams decode alone, then
beside prompts, of which there is always one to evaluate, then alone again: they have become longer
and slower. Columns: the mean of both medians between tokens alone; median and 99th percentile
beside prompts, in milliseconds; the ratios of the latter to the two before; tokens per second of
the streams and of the prompts. `prompts alone` is the speed of prompts without streams. The first
round builds the graphs and does not count. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from threading import Event
from typing import Any, Final

import numpy as np

from lamella.base.errors import LamellaError
from lamella.model.sampling import Logprobs
from lamella.runtime.engine.job import Job, Result
from lamella.runtime.engine.ticket import Ticket
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import GenerationParams, OpenParams, RequestParams

N_CTX_STREAM: Final = 4096  # tokens of a stream, more than it generates
N_FIRST: Final = 8  # tokens of a stream before it counts
COLUMNS: Final = (
    *("max_itl", "alone", "p50", "p99", "p99/p50", "p99/alone"),
    *("streams t/s", "prompts t/s"),
)


class Stream:
    """A sink that keeps the time of each token."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.started, self.ended = Event(), Event()

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        pass

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        self.times.append(time.perf_counter())
        if len(self.times) == N_FIRST:
            self.started.set()
        return True

    def finished(self, result: Result) -> None:
        self.ended.set()

    def failed(self, error: LamellaError) -> None:
        self.ended.set()  # cancelled

    def gaps(self, begin: float, end: float) -> list[float]:
        """Milliseconds between the tokens of a time."""
        times = [t for t in self.times if begin <= t <= end]
        return [1e3 * (b - a) for a, b in pairwise(times)]


class Prompts:
    """A sink for prompts that counts their evaluated tokens, and submits the next at each end."""

    def __init__(self, instance: Instance, n_tokens: int) -> None:
        self.n_done = 0
        self.ended = Event()
        self._instance = instance
        self._n_tokens = n_tokens
        self._rng = np.random.default_rng(1)
        self._n_before = 0
        self._stopped = False
        self._ticket: Ticket | None = None

    def submit(self) -> None:
        tokens = self._rng.integers(3, self._instance.vocab.n_tokens, self._n_tokens).tolist()
        job = Job(prompt=tuple(tokens), params=_params(n_predict=1), sink=self)
        self._n_before = 0
        self._ticket = self._instance.engine.submit(job)

    def stop(self) -> None:
        self._stopped = True
        assert self._ticket is not None, "nothing was submitted"
        self._instance.engine.cancel(self._ticket)
        self.ended.wait()

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        self.n_done += n_processed - self._n_before
        self._n_before = n_processed

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        return True

    def finished(self, result: Result) -> None:
        self._next()

    def failed(self, error: LamellaError) -> None:
        self._next()

    def _next(self) -> None:
        if self._stopped:
            self.ended.set()
        else:
            self.submit()


def _params(n_predict: int = -1) -> RequestParams:
    generation = GenerationParams(n_predict=n_predict, ignore_eos=True, cache_prompt=False)
    return RequestParams(generation=generation)


def measure(instance: Instance, args: argparse.Namespace) -> dict[str, float]:
    """One round: the streams alone, then beside prompts, then alone."""
    streams, prompts = [Stream() for _ in range(args.streams)], Prompts(instance, args.prompt)
    engine = instance.engine
    tickets = [
        engine.submit(Job(prompt=(1, 300 + i), params=_params(), sink=stream))
        for i, stream in enumerate(streams)
    ]
    for stream in streams:
        stream.started.wait()
    before = _median_gap(streams, args.seconds / 4)
    prompts.submit()
    time.sleep(args.seconds / 10)  # the first steps find out how long steps take
    loaded, n_before = time.perf_counter(), prompts.n_done
    time.sleep(args.seconds)
    end = time.perf_counter()
    n_done = prompts.n_done - n_before
    prompts.stop()
    alone = (before + _median_gap(streams, args.seconds / 4)) / 2
    for ticket in tickets:
        engine.cancel(ticket)
    for stream in streams:
        stream.ended.wait()
    gaps = [gap for stream in streams for gap in stream.gaps(loaded, end)]
    p50, p99 = np.percentile(gaps, [50, 99])
    return {
        "alone": alone,
        "p50": float(p50),
        "p99": float(p99),
        "p99/p50": float(p99 / p50),
        "p99/alone": float(p99) / alone,
        "streams t/s": len(gaps) / (end - loaded),
        "prompts t/s": n_done / (end - loaded),
    }


def _median_gap(streams: Sequence[Stream], seconds: float) -> float:
    """The median time between tokens of the streams, in milliseconds, in the next seconds."""
    begin = time.perf_counter()
    time.sleep(seconds)
    end = time.perf_counter()
    return statistics.median(gap for stream in streams for gap in stream.gaps(begin, end))


def prompts_alone(instance: Instance, args: argparse.Namespace) -> float:
    """Prompt tokens per second without streams."""
    prompts = Prompts(instance, args.prompt)
    prompts.submit()
    begin = time.perf_counter()
    time.sleep(args.seconds)
    speed = prompts.n_done / (time.perf_counter() - begin)
    prompts.stop()
    return speed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--max-itl", default="-1,0", metavar="MS,...")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("-r", "--repeat", type=int, default=3)
    args = parser.parse_args()
    limits = [int(limit) for limit in args.max_itl.split(",")]
    options = {
        "path": args.model,
        "n_parallel": args.streams + 1,
        "n_ctx": args.streams * N_CTX_STREAM + 2 * args.prompt,
        "devices": ("none",),
    }
    rounds: dict[int, list[dict[str, float]]] = {limit: [] for limit in limits}
    with ExitStack() as stack:
        opened = {
            limit: stack.enter_context(open_instance(OpenParams.make(options | {"max_itl": limit})))
            for limit in limits
        }
        for _ in range(1 + args.repeat):
            for limit, instance in opened.items():
                rounds[limit].append(measure(instance, args))
        speed = prompts_alone(opened[limits[0]], args)
    print(("{:>12}" * len(COLUMNS)).format(*COLUMNS))
    found: list[dict[str, Any]] = []
    for limit, each in rounds.items():
        row = {name: statistics.median(one[name] for one in each[1:]) for name in COLUMNS[1:]}
        found.append({"max_itl": limit, **{name: round(value, 2) for name, value in row.items()}})
        print(("{:>12}" * len(COLUMNS)).format(*map(str, found[-1].values())))
    print(f"prompts alone {speed:.0f} t/s")
    print(json.dumps({"rows": found, "prompts_alone": round(speed, 1)}))


if __name__ == "__main__":
    main()
